//! Routes of one host by their path: a tree of segments, walked so that the first route found is the most specific.
//!
//! A walk visits a node at most once and allocates nothing; its cost follows the path's depth, not the number of routes.

use super::matcher::Conditions;
use super::{PathPattern, Segment};
use http::{HeaderMap, Method};
use std::collections::HashMap;

/// One route at its place: what else must hold, and which route it is.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    pub conditions: Conditions,
    pub route: usize,
}

#[derive(Debug, Default)]
pub(super) struct Tree {
    literals: HashMap<Box<str>, Tree>,
    any: Option<Box<Tree>>,
    /// Routes that end here, most specific first.
    exact: Vec<Leaf>,
    /// Routes for this path and all below it.
    prefix: Vec<Leaf>,
}

/// The request, as far as a tree looks at it.
#[derive(Clone, Copy)]
pub(super) struct Sought<'a> {
    pub method: &'a Method,
    pub headers: &'a HeaderMap,
}

impl Tree {
    /// Adds a route. Those added to one place must come most specific first.
    pub(super) fn insert(&mut self, path: &PathPattern, leaf: Leaf) {
        let mut node = self;
        for segment in &path.segments {
            node = match segment {
                Segment::Literal(text) => node.literals.entry(text.as_str().into()).or_default(),
                Segment::Any(_) => node.any.get_or_insert_default(),
            };
        }
        if path.prefix { node.prefix.push(leaf) } else { node.exact.push(leaf) }
    }

    /// `rest` is what follows the slash, without a trailing one; `None`: nothing does. A branch whose methods or fields do
    /// not hold gives way to the next best one.
    pub(super) fn find(&self, rest: Option<&str>, sought: Sought<'_>) -> Option<usize> {
        let deeper = match rest {
            None => first(&self.exact, sought),
            Some(rest) => self.find_below(rest, sought),
        };
        deeper.or_else(|| first(&self.prefix, sought))
    }

    fn find_below(&self, rest: &str, sought: Sought<'_>) -> Option<usize> {
        if self.literals.is_empty() && self.any.is_none() {
            return None;
        }
        let (segment, rest) = match rest.split_once('/') {
            Some((segment, rest)) => (segment, Some(rest)),
            None => (rest, None),
        };
        let literal = self.literals.get(segment).and_then(|node| node.find(rest, sought));
        // A path in normal form has no empty segment, but this promise is not left to the caller.
        literal.or_else(|| self.any.as_ref().filter(|_| !segment.is_empty())?.find(rest, sought))
    }
}

fn first(leaves: &[Leaf], sought: Sought<'_>) -> Option<usize> {
    leaves.iter().find(|leaf| leaf.conditions.hold(sought.method, sought.headers)).map(|leaf| leaf.route)
}
