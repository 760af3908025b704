//! The Portway cluster operator.

fn main() {}
