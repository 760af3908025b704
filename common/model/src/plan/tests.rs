mod checker;
mod crash;
mod random;
mod shape;
mod world;
