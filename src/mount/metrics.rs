//! Serves over HTTP the metrics for Prometheus (`/metrics`), and two probes for service managers (`/healthz`,
//! `/readyz`).
//!
//! The metrics are those that `.dlio/metrics` shows to users other than the mount's owner. The server runs on the
//! background's runtime; the text is made on a blocking thread, one at a time, so that many requests do not take
//! threads from background work. Each connection has one request and a bounded time for all of it, and their number is
//! limited.
//!
//! The probes ask neither tier. `/healthz` fails if a new daemon would help: never because the slow tier hangs.
//! `/readyz` fails if the mount does not accept writes normally.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::{info, warn};

use crate::config::Listen;
use crate::error::{Context, Error, Result};
use crate::fs::Metrics;
use crate::stats::metrics;

/// Connections at once; further ones wait to be accepted. Silent clients occupy them all for three seconds, so three
/// times as many would have to be ahead of Prometheus before it gives up.
const CONNECTIONS: usize = 256;
/// How long a client may take to send its request, once connected.
const ASKS_WITHIN: Duration = Duration::from_secs(3);
/// For a request and its answer. Half of the usual timeout of Prometheus.
const PATIENCE: Duration = Duration::from_secs(5);
/// The pause after a connection could not be accepted, usually for lack of descriptors.
const BREATH: Duration = Duration::from_secs(1);
/// The most that is read of a request.
const REQUEST_MAX: usize = 16 << 10;

/// A bound port whose connections are not accepted yet.
#[derive(Debug)]
pub(super) struct Port {
    listener: std::net::TcpListener,
    pub(super) addr: SocketAddr,
}

/// Takes the port. Errors name the address and what to do.
pub(super) fn listen(at: &Listen) -> Result<Port> {
    let taken = std::net::TcpListener::bind((at.host.as_str(), at.port)).and_then(|listener| {
        listener.set_nonblocking(true)?;
        let addr = listener.local_addr()?;
        Ok(Port { listener, addr })
    });
    taken.map_err(|e| {
        let remedy = "choose an address of this machine and another port, 0 for any free one: --metrics-addr HOST:PORT";
        Error::refused(format!("cannot serve metrics at {at} (metrics_addr): {e}"), remedy)
    })
}

/// Answers until the runtime ends. `read_only`: why the mount is read-only, if the user did not ask for that.
pub(super) fn serve(runtime: &Runtime, port: Port, metrics: Metrics, read_only: Option<&'static str>) -> Result<()> {
    let _inside = runtime.enter();
    let listener = TcpListener::from_std(port.listener).at("listen at", port.addr)?;
    info!("metrics at http://{}/metrics", port.addr);
    let turn = || Arc::new(Semaphore::new(1));
    runtime.spawn(accept(listener, Arc::new(Pages { metrics, read_only, text_turn: turn(), probe_turn: turn() })));
    Ok(())
}

async fn accept(listener: TcpListener, pages: Arc<Pages>) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    let mut failing = false;
    // The semaphore is never closed.
    while let Ok(slot) = Arc::clone(&slots).acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                failing = false;
                tokio::spawn(answer(stream, Arc::clone(&pages), slot));
            }
            Err(error) => {
                if !failing {
                    warn!(%error, "cannot accept a connection for metrics; it is tried again");
                }
                failing = true;
                tokio::time::sleep(BREATH).await;
            }
        }
    }
}

/// Handles one request, then closes the connection in any case.
async fn answer(stream: TcpStream, pages: Arc<Pages>, _slot: OwnedSemaphorePermit) {
    let service = service_fn(move |request| respond(Arc::clone(&pages), request));
    let mut http = http1::Builder::new();
    // The whole exchange is bounded in time; a kept-alive connection would hold a slot until the next scrape.
    http.keep_alive(false).timer(TokioTimer::new()).header_read_timeout(ASKS_WITHIN).max_buf_size(REQUEST_MAX);
    // A client that breaks off, or is too slow, is ignored.
    drop(tokio::time::timeout(PATIENCE, http.serve_connection(TokioIo::new(stream), service)).await);
}

async fn respond(pages: Arc<Pages>, request: Request<Incoming>) -> Result<Response<String>, Infallible> {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    let (status, header, body) = match request.uri().path() {
        "/metrics" | "/healthz" | "/readyz" if !is_read => {
            (StatusCode::METHOD_NOT_ALLOWED, (ALLOW, "GET, HEAD"), String::new())
        }
        "/metrics" => match pages.text().await {
            Some(text) => (StatusCode::OK, (CONTENT_TYPE, metrics::CONTENT_TYPE), text),
            None => being_left(),
        },
        "/healthz" => match pages.probe().await {
            Some(_) => plain(StatusCode::OK, "healthy"),
            None => being_left(),
        },
        "/readyz" => match (pages.probe().await, pages.read_only) {
            (None, _) => being_left(),
            (_, Some(why)) => plain(StatusCode::SERVICE_UNAVAILABLE, why),
            (Some(Some(why)), None) => plain(StatusCode::SERVICE_UNAVAILABLE, &why),
            (Some(None), None) => plain(StatusCode::OK, "ready"),
        },
        _ => plain(StatusCode::NOT_FOUND, "use /metrics, /healthz or /readyz"),
    };
    // For HEAD, hyper sends only the head, with the length of the body.
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header.0, HeaderValue::from_static(header.1));
    Ok(response)
}

type HttpResponse = (StatusCode, (hyper::header::HeaderName, &'static str), String);

fn plain(status: StatusCode, text: &str) -> HttpResponse {
    (status, (CONTENT_TYPE, "text/plain"), format!("{text}\n"))
}

fn being_left() -> HttpResponse {
    plain(StatusCode::SERVICE_UNAVAILABLE, "the mount is being left")
}

#[derive(Debug)]
struct Pages {
    metrics: Metrics,
    read_only: Option<&'static str>,
    /// The permit to make the text.
    text_turn: Arc<Semaphore>,
    /// Separate, because the text waits for the file system of the fast tier.
    probe_turn: Arc<Semaphore>,
}

impl Pages {
    /// `None` while the mount is leaving.
    async fn text(&self) -> Option<String> {
        self.ask(&self.text_turn, Metrics::text).await
    }

    /// Why the mount does not accept writes normally; `None` while the mount is leaving. Blocks if the engine does not
    /// answer.
    async fn probe(&self) -> Option<Option<String>> {
        self.ask(&self.probe_turn, Metrics::refuses_writes).await
    }

    async fn ask<T: Send + 'static>(&self, turn: &Arc<Semaphore>, what: fn(&Metrics) -> Option<T>) -> Option<T> {
        let turn = Arc::clone(turn).acquire_owned().await.ok()?;
        let metrics = self.metrics.clone();
        let ask = move || {
            let answer = what(&metrics);
            // Not earlier: the client may have given up meanwhile, but the thread is still in use.
            drop(turn);
            answer
        };
        tokio::task::spawn_blocking(ask).await.ok()?
    }
}
