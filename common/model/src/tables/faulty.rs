use super::{TableOp, TableWriter};

/// A writer that fails one operation in `one_in`, by a seeded sequence.
#[derive(Debug)]
pub struct FaultyTables<W> {
    pub inner: W,
    one_in: u64,
    state: u64,
}

/// An injected failure, or a real one.
#[derive(Debug, thiserror::Error)]
pub enum FaultyError<E: std::error::Error + 'static> {
    #[error("injected failure")]
    Injected,
    #[error(transparent)]
    Real(E),
}

impl<W> FaultyTables<W> {
    /// `one_in` 0 never fails.
    pub const fn new(inner: W, one_in: u64, seed: u64) -> Self {
        Self { inner, one_in, state: seed }
    }

    fn fails(&mut self) -> bool {
        // Knuth's MMIX generator: the high bits are good enough to pick a victim.
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.one_in != 0 && (self.state >> 33).is_multiple_of(self.one_in)
    }
}

impl<W: TableWriter> TableWriter for FaultyTables<W> {
    type Error = FaultyError<W::Error>;

    fn write(&mut self, op: &TableOp) -> Result<(), Self::Error> {
        if self.fails() {
            return Err(FaultyError::Injected);
        }
        self.inner.write(op).map_err(FaultyError::Real)
    }
}
