//! The contract of a store (`contract/`), over each store there is.

#[macro_use]
mod contract;

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
