//! `GET /`: the status for people, one static page that asks for itself again. No script; everything in it is escaped.

use super::Readiness;
use super::status::{Endpoint, Limit, Shard, Status, Upstream};
use std::fmt::{self, Display, Write};

const HEAD: &str = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Staunch</title>\
<meta name=\"viewport\" content=\"width=device-width\"><meta http-equiv=\"refresh\" content=\"5\"><style>\
:root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem}\
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.25rem .75rem .25rem 0;border-bottom:1px solid #8884}\
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}pre{white-space:pre-wrap}.bad{color:#c22;font-weight:600}\
</style></head><body>\n";

#[must_use]
pub fn render(status: &Status, readiness: &Readiness) -> String {
    let mut out = String::with_capacity(8 << 10);
    // Writing to a `String` does not fail.
    let _ = write(&mut out, status, readiness);
    out
}

/// A text as it may stand between tags or in a quoted attribute.
struct Escaped<T>(T);

impl<T: Display> Display for Escaped<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.to_string().chars() {
            match character {
                '&' => formatter.write_str("&amp;")?,
                '<' => formatter.write_str("&lt;")?,
                '>' => formatter.write_str("&gt;")?,
                '"' => formatter.write_str("&quot;")?,
                '\'' => formatter.write_str("&#39;")?,
                other => formatter.write_char(other)?,
            }
        }
        Ok(())
    }
}

fn write(out: &mut String, status: &Status, readiness: &Readiness) -> fmt::Result {
    out.push_str(HEAD);
    writeln!(out, "<h1>Staunch {}</h1>", Escaped(&status.version))?;
    let class = if matches!(readiness, Readiness::Ready { degraded } if degraded.is_empty()) { "" } else { "bad" };
    writeln!(out, "<p><span class=\"{class}\">{}</span>, up {} s</p>", Escaped(readiness), status.uptime_seconds)?;
    configuration(out, status)?;
    table(out, "Listeners", &["Address", "#Connections"], listeners(status))?;
    let store = &status.store;
    writeln!(
        out,
        "<p>Store: {}, {} counters in memory, {} gateways</p>",
        store.backend, store.memory_keys, store.gateways
    )?;
    table(out, "Shards", &["Shard", "State", "Degraded", "#Clock ahead, ms", "Last error"], shards(status))?;
    let columns =
        ["Upstream", "Endpoint", "State", "Since", "#Weight", "#Connections", "#Requests under way", "Last error"];
    table(out, "Upstreams", &columns, endpoints(status))?;
    let columns =
        ["Policy", "Limit", "Quota", "Algorithm", "Mode", "#Allowed", "#Limited", "#Shadow", "#Exempt", "#Skipped"];
    table(out, "Limits", &columns, limits(status))?;
    out.push_str("</body></html>\n");
    Ok(())
}

fn configuration(out: &mut String, status: &Status) -> fmt::Result {
    let configuration = &status.configuration;
    writeln!(out, "<h2>Configuration</h2><p>{} ", Escaped(&configuration.file))?;
    writeln!(out, "({}), loaded {}</p>", Escaped(&configuration.hash), Escaped(&configuration.loaded_at))?;
    if let Some(error) = &configuration.last_error {
        writeln!(out, "<p class=\"bad\">Rejected {}, the one before is in force:</p>", Escaped(&error.at))?;
        writeln!(out, "<pre>{}</pre>", Escaped(&error.problems))?;
    }
    Ok(())
}

type Rows = Vec<Vec<String>>;

fn listeners(status: &Status) -> Rows {
    status.listeners.iter().map(|l| vec![l.address.clone(), l.connections.to_string()]).collect()
}

fn shards(status: &Status) -> Rows {
    let row = |shard: &Shard| {
        let degraded = if shard.degraded { "yes" } else { "no" };
        vec![
            shard.name.clone(),
            shard.state.to_owned(),
            degraded.to_owned(),
            shard.clock_skew_ms.map(|ms| ms.to_string()).unwrap_or_default(),
            shard.last_error.clone().unwrap_or_default(),
        ]
    };
    status.store.shards.iter().map(row).collect()
}

fn endpoints(status: &Status) -> Rows {
    let of = |upstream: &Upstream| {
        let row = |e: &Endpoint| {
            vec![
                upstream.name.clone(),
                e.address.clone(),
                e.state.to_owned(),
                e.since.clone(),
                e.weight.to_string(),
                e.connections.to_string(),
                e.requests.map(|requests| requests.to_string()).unwrap_or_default(),
                e.last_error.clone().unwrap_or_default(),
            ]
        };
        upstream.endpoints.iter().map(row).collect::<Rows>()
    };
    status.upstreams.iter().flat_map(of).collect()
}

fn limits(status: &Status) -> Rows {
    let row = |l: &Limit| {
        let totals = &l.totals;
        let mut cells =
            vec![l.policy.clone(), l.limit.clone(), l.quota.clone(), l.algorithm.clone(), l.mode.to_owned()];
        let counts = [totals.allowed, totals.limited, totals.shadow_limited, totals.exempt, totals.skipped];
        cells.extend(counts.map(|count| count.to_string()));
        cells
    };
    status.limits.iter().map(row).collect()
}

/// A table, or nothing when it would have no rows. A column whose title begins with `#` holds numbers.
fn table(out: &mut String, title: &str, columns: &[&str], rows: Rows) -> fmt::Result {
    if rows.is_empty() {
        return Ok(());
    }
    let class = |column: &str| if column.starts_with('#') { " class=\"n\"" } else { "" };
    write!(out, "<h2>{title}</h2><table><tr>")?;
    for column in columns {
        write!(out, "<th{}>{}</th>", class(column), column.trim_start_matches('#'))?;
    }
    for row in rows {
        out.push_str("</tr>\n<tr>");
        for (column, cell) in columns.iter().zip(row) {
            write!(out, "<td{}>{}</td>", class(column), Escaped(cell))?;
        }
    }
    writeln!(out, "</tr></table>")
}
