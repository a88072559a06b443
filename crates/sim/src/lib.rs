//! quipu-sim
