//! On the kernel's maps; they need root, and fail without.

mod fixture;
mod opening;
mod reading;
mod writing;
