//! Routes of one host by their path: a tree of segments, walked so that the first route found is the most specific.
//!
//! A walk visits a node at most once and allocates nothing; its cost follows the path's depth, not the number of routes.

use super::matcher::Conditions;
use super::{PathPattern, Segment};
use http::{HeaderMap, Method};
use smallvec::SmallVec;
use std::collections::HashMap;

/// One route at its place: what else must hold, and which route it is.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    /// `None`: nothing, as for most routes.
    pub conditions: Option<Box<Conditions>>,
    pub route: usize,
}

/// Most places have one route, and it lies in the node itself: with thousands of routes a look-up is as fast as the
/// memory it touches.
type Leaves = SmallVec<[Leaf; 1]>;

#[derive(Debug, Default)]
pub(super) struct Tree {
    literals: Literals,
    any: Option<Box<Tree>>,
    /// Routes that end here, most specific first.
    exact: Leaves,
    /// Routes for this path and all below it.
    prefix: Leaves,
}

/// A node's children by name: compared one by one while they are few, hashed from then on.
#[derive(Debug)]
enum Literals {
    Few(Vec<(Box<str>, Tree)>),
    Many(HashMap<Box<str>, Tree>),
}

/// Where hashing a segment becomes cheaper than comparing it with every child.
const FEW_MAX: usize = 4;

impl Default for Literals {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl Literals {
    fn get(&self, name: &str) -> Option<&Tree> {
        match self {
            Self::Few(children) => children.iter().find(|(child, _)| **child == *name).map(|(_, node)| node),
            Self::Many(children) => children.get(name),
        }
    }

    fn get_or_insert(&mut self, name: &str) -> &mut Tree {
        if let Self::Few(children) = self
            && children.len() == FEW_MAX
        {
            *self = Self::Many(children.drain(..).collect());
        }
        match self {
            Self::Many(children) => children.entry(name.into()).or_default(),
            Self::Few(children) => {
                let known = children.iter().position(|(child, _)| **child == *name);
                let at = known.unwrap_or(children.len());
                if known.is_none() {
                    children.push((name.into(), Tree::default()));
                }
                &mut children[at].1
            }
        }
    }
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
                Segment::Literal(text) => node.literals.get_or_insert(text),
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
    let holds = |leaf: &&Leaf| leaf.conditions.as_ref().is_none_or(|asked| asked.hold(sought.method, sought.headers));
    leaves.iter().find(holds).map(|leaf| leaf.route)
}
