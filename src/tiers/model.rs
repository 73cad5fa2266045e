//! The engine's knowledge as plain data: the view, the pending events, the references to objects, and what may be
//! published next. Pure: no I/O, no clock.

pub(crate) mod clean_list;
pub(crate) mod closure;
pub(crate) mod copy_plan;
pub(crate) mod event;
pub(crate) mod expiry;
pub(crate) mod fill;
pub(crate) mod held;
pub(crate) mod in_place;
pub(crate) mod listing;
pub(crate) mod node;
pub(crate) mod object_references;
pub(crate) mod publish_plan;
pub(crate) mod queue;
pub(crate) mod state;
pub(crate) mod uncommitted;
pub(crate) mod view;
