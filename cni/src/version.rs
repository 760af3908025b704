//! Versions of the CNI specification.

use serde::{Deserialize, Serialize};

/// A version that this plugin speaks. Later ones are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Version {
    #[serde(rename = "0.3.1")]
    V0_3_1,
    #[serde(rename = "0.4.0")]
    V0_4_0,
    #[serde(rename = "1.0.0")]
    V1_0_0,
    #[serde(rename = "1.1.0")]
    V1_1_0,
}

impl Version {
    pub const ALL: [Self; 4] = [Self::V0_3_1, Self::V0_4_0, Self::V1_0_0, Self::V1_1_0];
    /// What an answer has that cannot be in the asked version.
    pub const NEWEST: Self = Self::V1_1_0;

    pub const fn name(self) -> &'static str {
        match self {
            Self::V0_3_1 => "0.3.1",
            Self::V0_4_0 => "0.4.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }

    /// `None` for a version that is not spoken.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.name() == name)
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
