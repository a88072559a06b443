//! Seeded clusters: nodes on simulated machines and a simulated network, in simulated time, on one thread.
//!
//! Nothing of the nodes is simulated but what they stand on: consensus, storage and encoding are those of the product. A seed
//! is a world, the same each time.
//!
//! | file | what lives there |
//! |---|---|
//! | `network` | what lies between nodes: delay, loss, duplicates, cuts |
//! | `machines` | nodes and the machines they live on: their lives and ends |
//! | `clients` | who asks, and asks again until somebody answers |
//! | `wholes` | one who asks for uniques, holds and quotas, and knows what there must be in the end |
//! | `world` | one world from its beginning to its end |
//! | `story` | worlds that do what a text says, line by line |

pub mod clients;
pub mod machines;
pub mod network;
pub mod story;
pub mod wholes;
pub mod world;

pub use world::{Planted, Stats, run};
