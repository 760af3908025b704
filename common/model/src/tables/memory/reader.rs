use std::convert::Infallible;

use portway_datapath::{
    Addr, BackendIndex, BackendSlot, FrontendKey, FrontendValue, Record, RunOffset, ServiceIndex,
    ServiceName, ServiceWord,
};

use super::MemoryTables;
use crate::tables::TableReader;

impl TableReader for MemoryTables {
    type Error = Infallible;

    fn each_service(&self, each: &mut dyn FnMut(ServiceIndex, ServiceWord)) -> Result<(), Infallible> {
        let words = self.services.iter().filter(|(_, word)| word.word() != 0);
        words.for_each(|(index, word)| each(*index, *word));
        Ok(())
    }

    fn run_is(&self, at: RunOffset, records: &[Record]) -> Result<bool, Infallible> {
        Ok((0..).zip(records).all(|(n, record)| self.records.get(&at.plus(n)) == Some(record)))
    }

    fn maglev_slots(&self, at: u32, slots: u32) -> Result<Vec<u16>, Infallible> {
        Ok((at..at + slots).map(|at| self.maglev.get(&at).copied().unwrap_or_default()).collect())
    }

    fn backend_slot(&self, index: BackendIndex) -> Result<BackendSlot, Infallible> {
        Ok(self.backends.get(&index).copied().unwrap_or(BackendSlot::EMPTY))
    }

    fn each_backend_in_use(&self, each: &mut dyn FnMut(BackendIndex, BackendSlot)) -> Result<(), Infallible> {
        let in_use = self.backends.iter().filter(|(_, slot)| slot.members() != 0);
        in_use.for_each(|(index, slot)| each(*index, *slot));
        Ok(())
    }

    fn each_name(&self, each: &mut dyn FnMut(ServiceIndex, &ServiceName)) -> Result<(), Infallible> {
        self.names.iter().for_each(|(index, name)| each(*index, name));
        Ok(())
    }

    fn has_name(&self, service: ServiceIndex) -> Result<bool, Infallible> {
        Ok(self.names.contains_key(&service))
    }

    fn each_source_range(&self, each: &mut dyn FnMut(ServiceIndex, Addr, u8)) -> Result<(), Infallible> {
        self.source_ranges.keys().for_each(|(service, addr, bits)| each(*service, *addr, *bits));
        Ok(())
    }

    fn each_frontend(&self, each: &mut dyn FnMut(FrontendKey, FrontendValue)) -> Result<(), Infallible> {
        self.frontends.iter().for_each(|(key, value)| each(*key, *value));
        Ok(())
    }

    fn frontend_value(&self, key: &FrontendKey) -> Result<Option<FrontendValue>, Infallible> {
        Ok(self.frontends.get(key).copied())
    }
}
