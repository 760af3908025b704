//! Who uses which number, as pods would be judged by it.

use std::collections::BTreeMap;

use portway_datapath::NumericIdentity;
use portway_model::labels::Labels;

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    numbers: BTreeMap<Labels, BTreeMap<NumericIdentity, usize>>,
    meanings: BTreeMap<NumericIdentity, BTreeMap<Labels, usize>>,
    /// What must never be.
    pub(crate) faults: Vec<String>,
    pub(crate) begun: usize,
    pub(crate) crashes: usize,
    pub(crate) retries: u64,
    /// Label sets that came to a number by requests, and the seconds it took them.
    pub(crate) allocated: u64,
    pub(crate) seconds: f64,
}

impl Ledger {
    pub(crate) fn begin(&mut self, who: &str, labels: &Labels, number: NumericIdentity) {
        self.begun += 1;
        let numbers = self.numbers.entry(labels.clone()).or_default();
        *numbers.entry(number).or_default() += 1;
        if numbers.len() > 1 {
            self.faults.push(format!("{who}: {labels} has {:?}", numbers.keys()));
        }
        let meanings = self.meanings.entry(number).or_default();
        *meanings.entry(labels.clone()).or_default() += 1;
        if meanings.len() > 1 {
            self.faults.push(format!("{who}: {number} means {:?}", meanings.keys()));
        }
    }

    pub(crate) fn end(&mut self, labels: &Labels, number: NumericIdentity) {
        take(self.numbers.entry(labels.clone()).or_default(), &number);
        take(self.meanings.entry(number).or_default(), labels);
    }
}

fn take<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}
