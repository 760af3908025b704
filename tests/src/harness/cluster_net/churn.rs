//! Pods that come and go without pause, as kubelet has them come and go.

use std::fmt;
use std::iter::Sum;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};

use super::cni::Refused;
use crate::harness::eventually;

/// What kubelet would wait for before it says that a pod does not start.
const PATIENCE: Duration = Duration::from_secs(30);

/// What came of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Churned {
    /// Pods made and removed.
    pub made: u32,
    /// Calls that were told to try again.
    pub again: u32,
}

impl Churned {
    /// As kubelet: until it works. Only "try again later" is a reason to.
    pub fn insist<T>(
        &mut self,
        command: &str,
        mut call: impl FnMut() -> Result<Result<T, Refused>>,
    ) -> Result<T> {
        eventually(PATIENCE, &format!("{command} to work"), || match call() {
            Ok(Ok(done)) => Ok(Ok(done)),
            Ok(Err(refused)) if refused.code == Refused::TRY_AGAIN => {
                self.again += 1;
                bail!("{refused:?}")
            }
            Ok(Err(refused)) => Ok(Err(anyhow!("{command}: {refused:?}"))),
            Err(error) => Ok(Err(error)),
        })?
    }
}

impl Sum for Churned {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self { made: sum.made + one.made, again: sum.again + one.again })
    }
}

impl fmt::Display for Churned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} pods came and went, {} calls of the plugin were told to try again",
            self.made, self.again
        )
    }
}
