//! The result of one check.

use serde::Serialize;

/// The result of one check.
#[derive(Debug, Serialize)]
pub(super) struct DoctorFinding {
    pub(super) verdict: Verdict,
    pub(super) about: String,
    pub(super) found: String,
    /// What it means and what to do; absent when all is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remedy: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Ok,
    /// A mount works, with limits.
    Warn,
    /// A mount does not work.
    Fail,
}

impl DoctorFinding {
    pub(super) fn ok(about: impl Into<String>, found: impl Into<String>) -> Self {
        DoctorFinding { verdict: Verdict::Ok, about: about.into(), found: found.into(), remedy: None }
    }

    pub(super) fn warn(about: impl Into<String>, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        DoctorFinding { verdict: Verdict::Warn, remedy: Some(remedy.into()), ..DoctorFinding::ok(about, found) }
    }

    pub(super) fn fail(about: impl Into<String>, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        DoctorFinding { verdict: Verdict::Fail, remedy: Some(remedy.into()), ..DoctorFinding::ok(about, found) }
    }
}
