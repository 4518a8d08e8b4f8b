//! `X-RateLimit-Reset` as a moment: the end of a window on a whole second is that second, not the next one.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use support::gateway::Gateway;
use support::redis::RedisServer;
use support::upstream::Upstream;

const ROUTE: &str = "[policies.p]\nlimits = [{ name = \"l\", key = \"global\", quota = \"2/1h\", algorithm = \"fixed_window\" }]\n\
                     [[routes]]\npath = \"/*\"\nupstream = \"up\"\npolicies = [\"p\"]\n";

#[test]
fn the_end_of_a_window_is_not_told_a_second_late() {
    let (server, upstream) = (RedisServer::start(), Upstream::start());
    let redis =
        format!("[store]\nbackend = \"redis\"\n[store.redis]\nnodes = [\"{}\"]\ntimeout = \"20s\"\n", server.url());
    for store in ["", &redis] {
        let gateway = Gateway::start(format!("{store}{}{ROUTE}", upstream.table()));
        for status in [200, 200, 429] {
            let answer = gateway.get("/");
            assert_eq!((answer.status, answer.number("x-ratelimit-reset") % 3600), (status, 0), "{store}");
        }
    }
}
