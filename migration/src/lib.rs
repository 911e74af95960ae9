//! Orbit database schema.
