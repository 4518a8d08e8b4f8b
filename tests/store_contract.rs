//! The contract of a store (`contract/`), over each store there is.

#[macro_use]
mod contract;
mod support;

mod memory {
    use crate::contract::{self, Place, Store};
    use staunch::algorithm::{Algorithm, Decision, Quota};
    use staunch::clock;
    use staunch::store::memory::Memory;
    use staunch::store::{Answer, Check, CounterKey};
    use std::sync::{Arc, LazyLock};

    struct InProcess;

    struct Opened(Arc<Memory>);

    impl Place for InProcess {
        type Store = Opened;

        fn open(&self) -> Opened {
            static MEMORY: LazyLock<Arc<Memory>> = LazyLock::new(|| Arc::new(Memory::new(100_000)));
            Opened(Arc::clone(&MEMORY))
        }
    }

    impl Store for Opened {
        fn decide(&self, checks: &[Check]) -> Vec<Answer> {
            self.0.decide(checks, clock::now_us()).to_vec()
        }

        fn give_back(&self, check: &Check, charged_at: u64) {
            self.0.give_back(check, charged_at, clock::now_us());
        }

        fn charge_up_to(&self, check: &Check) -> u64 {
            self.0.charge_up_to(check, clock::now_us())
        }

        fn inspect(&self, key: CounterKey, algorithm: Algorithm, quota: &Quota) -> Decision {
            self.0.inspect(key, algorithm, quota, clock::now_us())
        }

        fn reset(&self, key: CounterKey) -> bool {
            self.0.reset(key)
        }
    }

    contract!(InProcess);
}

mod redis {
    use crate::contract::{self, Place, Store};
    use crate::support::redis::RedisServer;
    use staunch::algorithm::{Algorithm, Decision, Quota};
    use staunch::store::redis::{Client, Node, Settings, Shards, Topology};
    use staunch::store::{Answer, Check, CounterKey};
    use staunch::units::Secret;
    use std::rc::Rc;
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::runtime::{Builder, LocalOptions, LocalRuntime};

    struct OneNode {
        shards: Arc<Shards>,
        _server: RedisServer,
    }

    impl OneNode {
        fn start() -> Self {
            let server = RedisServer::start();
            let shards = Shards::new(Settings {
                topology: Topology::Sharded,
                nodes: vec![Node { name: "n0".to_owned(), url: Secret::new(server.url()) }],
                timeout: Duration::from_secs(20),
                failures: 5,
                retry_after: Duration::from_millis(500),
                key_prefix: "staunch".to_owned(),
            });
            Self { shards, _server: server }
        }
    }

    /// One core of a gateway.
    struct Core {
        runtime: LocalRuntime,
        client: Rc<Client>,
    }

    impl Place for OneNode {
        type Store = Core;

        fn open(&self) -> Core {
            let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).unwrap();
            Core { runtime, client: Client::new(self.shards.clone()) }
        }
    }

    impl Store for Core {
        fn decide(&self, checks: &[Check]) -> Vec<Answer> {
            let answers = self.runtime.block_on(self.client.decide(checks));
            answers.into_iter().map(|answer| answer.expect("the node answers")).collect()
        }

        fn give_back(&self, check: &Check, charged_at: u64) {
            self.runtime.block_on(self.client.give_back(check, charged_at)).expect("the node answers");
        }

        fn charge_up_to(&self, check: &Check) -> u64 {
            self.runtime.block_on(self.client.charge_up_to(check)).expect("the node answers")
        }

        fn inspect(&self, key: CounterKey, algorithm: Algorithm, quota: &Quota) -> Decision {
            self.runtime.block_on(self.client.inspect(key, algorithm, quota)).expect("the node answers")
        }

        fn reset(&self, key: CounterKey) -> bool {
            self.runtime.block_on(self.client.reset(key)).expect("the node answers")
        }
    }

    // All but a key that comes twice in one group: the script wants the keys of a group to differ.
    contract!(OneNode::start();
        a_first_request_is_never_refused,
        exactly_the_quota_of_a_burst_passes,
        a_refusal_says_when_to_come_again,
        each_answer_shows_the_standing_before_and_after,
        a_cost_is_taken_whole_or_not_at_all,
        a_refused_request_changes_nothing,
        what_is_given_back_can_be_used_again,
        giving_back_to_a_key_that_is_not_there_gives_nothing,
        a_raised_quota_applies_to_what_was_used,
        a_lowered_quota_applies_to_what_was_used,
        another_algorithm_starts_anew,
        charging_what_fits_stops_at_the_quota,
        looking_charges_nothing,
        a_reset_key_is_whole_again,
        two_keys_never_interact,
        one_tier_refusing_charges_no_other,
        a_shadow_limit_refuses_nobody_and_hides_nobody,
        a_shadow_limit_of_a_refused_request_is_not_charged,
        the_order_of_the_checks_changes_nothing,
        eight_threads_get_exactly_the_quota,
        eight_threads_keep_all_tiers_consistent,
        eight_threads_give_back_what_they_took,
    );
}
