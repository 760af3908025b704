//! The demo's node: three pods of two services, and the manifests that say so.

use anyhow::Result;

use super::World;

/// A service of [`set_up`] as a client names it.
pub const WEB: &str = "10.96.0.10:80";

const MANIFESTS: [(&str, &str); 4] = [
    ("web.yaml", include_str!("../../demo/web.yaml")),
    ("cart.yaml", include_str!("../../demo/cart.yaml")),
    ("sticky.yaml", include_str!("../../demo/sticky.yaml")),
    ("empty.yaml", include_str!("../../demo/empty.yaml")),
];

/// Makes the pods and writes the manifests into a world without pods: their addresses stand in the manifests.
pub fn set_up(world: &mut World) -> Result<()> {
    for pod in ["web-1", "web-2", "cart-1"] {
        world.serving_pod(pod)?;
    }
    MANIFESTS.iter().try_for_each(|(name, text)| world.manifests().put_text(name, text))
}
