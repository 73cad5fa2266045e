//! What the engine believes, as plain data: the view, the pending events, who refers to which object, and what may be published
//! next. Pure: no I/O, no clock.

pub(crate) mod closure;
pub(crate) mod node;
pub(crate) mod publish_plan;
pub(crate) mod state;
pub(crate) mod view;
