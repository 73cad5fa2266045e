//! The metrics and the probes over HTTP: who is answered what, by a mount in any state; and what a Prometheus makes of the metrics, with
//! the dashboard and the alerts of `monitoring/`.
//!
//! Needs root and /dev/fuse; for Prometheus Debian's package of that name, which `cargo xtask test` unpacks.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::errno::Errno;
use nix::unistd::Pid;
use serde_json::Value;

use crate::common::rig::Rig;
use crate::common::{Elsewhere, Mount, PATIENCE, Relay, USER, succeeded, until};
use crate::needs::{MOUNTS, needs};

/// A mount that serves its metrics, and where.
fn serving(elsewhere: Elsewhere, options: &[&str]) -> (Mount, SocketAddr) {
    let mut mount = Mount::idle(elsewhere, options);
    mount.arguments(&["--metrics-addr", "0"]);
    mount.start();
    let addr = address(&mount).expect("it listens");
    (mount, addr)
}

/// Where a mount says that it serves metrics.
fn address(mount: &Mount) -> Option<SocketAddr> {
    Some(mount.stats_json()["metrics_addr"].as_str()?.parse().unwrap())
}

/// Sends something, and gives back the head and the body of what is answered until the other side hangs up.
fn ask(addr: SocketAddr, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    (head.to_ascii_lowercase(), body.to_owned())
}

fn get(addr: SocketAddr, path: &str) -> (String, String) {
    ask(addr, &format!("GET {path} HTTP/1.1\r\nHost: {addr}\r\n\r\n"))
}

/// Names and types.
fn families(metrics: &str) -> BTreeSet<&str> {
    metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect()
}

/// The names of all labels; no value of ours has a character that would have to be escaped.
fn labels(metrics: &str) -> BTreeSet<&str> {
    let samples = metrics.lines().filter(|line| !line.starts_with('#'));
    let sets = samples.filter_map(|line| Some(line.split_once('{')?.1.split_once('}')?.0));
    sets.flat_map(|set| set.split(',')).map(|label| label.split_once('=').unwrap().0).collect()
}

/// The ports at which a process listens.
fn ports(pid: Pid) -> Vec<u16> {
    let process = format!("/proc/{pid}");
    let open = fs::read_dir(format!("{process}/fd")).unwrap().filter_map(|fd| fs::read_link(fd.unwrap().path()).ok());
    let open: Vec<String> = open.map(|file| file.to_string_lossy().into_owned()).collect();
    let tables = ["tcp", "tcp6"].map(|table| fs::read_to_string(format!("{process}/net/{table}")).unwrap_or_default());
    let rows = tables.iter().flat_map(|table| table.lines().skip(1)).map(|line| line.split_whitespace().collect());
    // Local address, state (0A: listens), inode.
    rows.filter(|row: &Vec<&str>| row[3] == "0A" && open.contains(&format!("socket:[{}]", row[9])))
        .map(|row| u16::from_str_radix(row[1].rsplit(':').next().unwrap(), 16).unwrap())
        .collect()
}

#[test]
fn what_is_served_is_what_anybody_may_read() {
    needs!(MOUNTS);
    let (mount, addr) = serving(Elsewhere::default(), &["settle=0s"]);
    mount.put("secret", "x");
    mount.sync();
    assert!(!mount.at("other-secret").exists());
    assert!(addr.ip().is_loopback(), "a port alone is for this machine");
    assert_eq!(ports(mount.pid()), [addr.port()]);
    until("the log says where", || mount.log().contains(&format!("metrics at http://{addr}/metrics")));
    assert!(mount.stats().contains(&format!("metrics      http://{addr}/metrics")), "{}", mount.stats());

    let (head, body) = get(addr, "/metrics");
    assert!(head.starts_with("http/1.1 200 ok") && head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    assert!(body.contains("dliofs_safe 1\n") && !body.contains("secret"), "{body}");
    // Each of few values: no label can be a path.
    assert_eq!(labels(&body), BTreeSet::from(["errno", "io_path", "le", "op", "tier", "version"]));
    let read = succeeded(mount.as_user(USER, "cat .dlio/metrics"));
    assert_eq!(families(&body), families(&read));

    for path in ["/", "/metrics/", "/metrics2", "/secret", "/healthz/", "/ready"] {
        let (head, body) = get(addr, path);
        assert!(head.starts_with("http/1.1 404 ") && body.contains("/metrics, /healthz or /readyz"), "{path}: {head}");
    }
    for (method, path) in [("POST", "/metrics"), ("PUT", "/healthz"), ("DELETE", "/readyz")] {
        let (head, _) = ask(addr, &format!("{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"));
        assert!(head.starts_with("http/1.1 405 ") && head.contains("allow: get, head"), "{method}: {head}");
    }
    // As GET, without what GET would get; the length is still told.
    for (path, code) in [("/metrics", 200), ("/healthz", 200), ("/readyz", 200), ("/none", 404)] {
        let (head, body) = ask(addr, &format!("HEAD {path} HTTP/1.1\r\nHost: {addr}\r\n\r\n"));
        assert!(head.starts_with(&format!("http/1.1 {code} ")) && body.is_empty(), "{path}: {head}\n{body}");
        assert!(head.contains("content-type: text/plain") && !head.contains("content-length: 0"), "{path}: {head}");
    }
    assert!(ask(addr, "nonsense\r\n\r\n").0.starts_with("http/1.1 400 "));
    let long = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(40_000));
    let mut stream = TcpStream::connect(addr).unwrap();
    // It may hang up before all is sent.
    drop(stream.write_all(long.as_bytes()).and_then(|()| stream.read_to_string(&mut String::new())));
    assert!(get(addr, "/metrics?x=y").0.starts_with("http/1.1 200 "), "and it goes on");
}

/// What both probes answer: the codes, and what `/readyz` says.
fn probes(addr: SocketAddr) -> (u16, u16, String) {
    let code = |head: &str| head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    let ((healthy, _), (ready, why)) = (get(addr, "/healthz"), get(addr, "/readyz"));
    (code(&healthy), code(&ready), why)
}

#[test]
fn a_mount_that_takes_writes_is_ready_and_one_that_is_meant_to_be_read_only_too() {
    needs!(MOUNTS);
    let (mut mount, addr) = serving(Elsewhere::default(), &[]);
    assert_eq!(probes(addr), (200, 200, "ready\n".to_owned()));
    assert_eq!(get(addr, "/healthz").1, "healthy\n");
    // Whatever is only on the fast tier, and whatever holds the drain up: writes are taken.
    mount.control("pause");
    mount.put("ckpt", "x");
    assert!(mount.verdict().contains("HELD"), "{}", mount.verdict());
    assert_eq!(probes(addr), (200, 200, "ready\n".to_owned()));
    mount.stop();
    mount.arguments(&["--metrics-addr", "0", "--read-only"]);
    mount.start();
    assert_eq!(probes(address(&mount).unwrap()), (200, 200, "ready\n".to_owned()));
}

#[test]
fn a_mount_that_is_read_only_against_its_will_is_healthy_and_not_ready() {
    needs!(MOUNTS);
    let slow = tempfile::tempdir().unwrap();
    let tier = slow.path().to_str().unwrap();
    succeeded(Command::new("mount").args(["-t", "tmpfs", "-o", "ro", "tmpfs", tier]).output().unwrap());
    let (mut mount, addr) = serving(Elsewhere { slow: Some(slow.path().into()), ..Elsewhere::default() }, &[]);
    let said = probes(addr);
    mount.stop();
    succeeded(Command::new("umount").arg(tier).output().unwrap());
    assert_eq!((said.0, said.1), (200, 503));
    assert!(said.2.starts_with("the mount is read-only: its slow tier could not be written"), "{}", said.2);
    assert!(said.2.contains("--read-only") && !said.2.contains(tier), "{}", said.2);
}

#[test]
fn a_fast_tier_that_fails_and_changes_that_are_refused_make_a_mount_not_ready() {
    needs!(MOUNTS);
    let mut mount = Mount::idle(Elsewhere::default(), &["settle=30min", "live_after=1h"]);
    mount.arguments(&["--metrics-addr", "0", "-o", "max_pending=1000"]);
    mount.start();
    let addr = address(&mount).unwrap();
    assert_eq!(probes(addr).1, 200);
    (0..1_000).find_map(|i| fs::create_dir(mount.at(format!("{i}"))).err().map(|_| ()));
    let (healthy, ready, why) = probes(addr);
    assert!((healthy, ready) == (200, 503) && why.starts_with("max_pending changes wait"), "{healthy} {ready} {why}");
    mount.sync();
    assert_eq!(probes(addr).1, 200, "it takes writes again");
    mount.stop();

    mount.through(&["env", "DLIO_FAULTS=at=fast:create@pool:1:1:EIO"]);
    mount.start();
    let addr = address(&mount).unwrap();
    assert_eq!(probes(addr).1, 200);
    mount.put("ckpt", "weights");
    let (healthy, ready, why) = probes(addr);
    assert!((healthy, ready) == (200, 503) && why.starts_with("the fast tier fails"), "{healthy} {ready} {why}");
    mount.stop();

    // Whatever else fails: the program got an error, and nothing said so.
    mount.through(&["env", "DLIO_FAULTS=at=slow:read@old:1:1:EIO"]);
    fs::write(mount.slow().join("old"), "bytes").unwrap();
    mount.start();
    let addr = address(&mount).unwrap();
    let mut old = File::options().append(true).open(mount.at("old")).unwrap();
    assert_eq!(old.write_all(b"more").unwrap_err().raw_os_error(), Some(Errno::EIO as i32));
    let (healthy, ready, why) = probes(addr);
    assert!((healthy, ready) == (200, 503), "{healthy} {ready} {why}");
    let told = "WRITES FAIL: 1 call, the last error EIO ";
    assert!(why.starts_with(told) && mount.verdict().contains(told), "{why} {}", mount.verdict());
    assert_eq!(mount.stats_json()["failing"]["writes"], 1);
}

#[test]
fn nobody_listens_who_was_not_told_to() {
    needs!(MOUNTS);
    let mount = Mount::new();
    assert_eq!((address(&mount), ports(mount.pid())), (None, vec![]));
}

#[test]
fn a_daemon_in_the_background_serves_until_it_is_left() {
    needs!(MOUNTS);
    let rig = Rig::new();
    rig.mount(&["--metrics-addr", "0"]);
    let stats: Value = serde_json::from_str(&fs::read_to_string(rig.mnt(".dlio/stats.json")).unwrap()).unwrap();
    let addr = stats["metrics_addr"].as_str().unwrap().parse().unwrap();
    assert!(get(addr, "/metrics").0.starts_with("http/1.1 200 "));
    let daemon = rig.daemon();
    rig.umount_safely();
    until("the daemon has ended", || !Path::new(&format!("/proc/{daemon}")).exists());
    assert!(TcpStream::connect(addr).is_err(), "nobody listens any more");
}

#[test]
fn a_port_that_is_taken_is_told_before_anything_is_mounted() {
    needs!(MOUNTS);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap();
    let mut mount = Mount::idle(Elsewhere::default(), &[]);
    mount.option(&format!("metrics_addr={}", addr.port()));
    let (code, said) = mount.refused();
    assert_eq!(code, Some(1), "{said}");
    for part in [addr.to_string().as_str(), "in use", "--metrics-addr HOST:PORT", "0 for any free one"] {
        assert!(said.contains(part), "no {part:?} in {said}");
    }
    assert!(!mount.fast().join(".dlio-fs/log").exists(), "nothing was begun");
    drop(taken);
    mount.start();
    assert_eq!(address(&mount), Some(addr));
}

#[test]
fn clients_that_say_nothing_do_not_keep_others_out() {
    needs!(MOUNTS);
    let (_mount, addr) = serving(Elsewhere::default(), &[]);
    let silent: Vec<_> = (0..200).map(|_| TcpStream::connect(addr).unwrap()).collect();
    let mut slow = TcpStream::connect(addr).unwrap();
    slow.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
    assert!(get(addr, "/metrics").0.starts_with("http/1.1 200 "));
    // They were accepted before, and most are still there: nobody had to wait until they were let go of.
    let is_there = |stream: &&TcpStream| {
        stream.set_nonblocking(true).unwrap();
        stream.peek(&mut [0]).is_err_and(|e| e.kind() == ErrorKind::WouldBlock)
    };
    let there = silent.iter().filter(is_there).count();
    assert!(there > 100, "{there} of 200 were still connected");
    drop(silent);
}

#[test]
fn it_answers_while_the_slow_tier_hangs() {
    needs!(MOUNTS, "bindfs");
    let below = Relay::new(|_| ());
    let (mount, addr) = serving(Elsewhere { slow: Some(below.shown()), ..Elsewhere::default() }, &["slow_wait=2s"]);
    fs::create_dir(mount.at("run")).unwrap();
    mount.put("run/first", "x");
    mount.sync();
    let frozen = below.freeze();
    mount.put("run/second", "x");
    until("it says that the slow tier is down", || {
        let (head, body) = get(addr, "/metrics");
        assert!(head.starts_with("http/1.1 200 "), "{head}");
        body.contains("dliofs_slow_tier_down 1\n") && body.contains("dliofs_drain_queue_files 1\n")
    });
    // A new daemon would wait for the same tier; and what the job writes is still taken.
    assert_eq!(probes(addr), (200, 200, "ready\n".to_owned()));
    mount.put("run/third", "x");
    drop(frozen);
}

/// Where the dashboard and the alerts are.
fn monitoring(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("monitoring").join(name)
}

/// One of Debian's programs: as `cargo xtask` has unpacked it, or as it is installed.
fn tool(name: &str) -> Command {
    let unpacked = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("tools/prometheus/usr/bin").join(name);
    let mut command = Command::new(if unpacked.exists() { unpacked } else { name.into() });
    command.stdin(Stdio::null());
    command
}

/// Its own output; a program that is not there is named with the remedy.
fn promtool(command: &mut Command) -> String {
    succeeded(command.output().expect("this test needs promtool (cargo xtask setup, or apt-get install prometheus)"))
}

/// What the page about metrics has a scrape configuration add.
const LABELS: &str = "{mount: train, dlio_job: run7}";

/// A Prometheus that looks at one mount, with our alerts. Ended when dropped.
struct Prometheus {
    dir: tempfile::TempDir,
    process: Child,
    addr: SocketAddr,
}

impl Prometheus {
    fn watching(target: SocketAddr) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = format!(
            "global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}\n\
             rule_files: [{:?}]\n\
             scrape_configs:\n  - job_name: dlio-fs\n    static_configs: [{{targets: [\"{target}\"], labels: {LABELS}}}]\n",
            monitoring("alerts.yml")
        );
        fs::write(dir.path().join("prometheus.yml"), config).unwrap();
        let flag = |name: &str, file: &str| format!("--{name}={}", dir.path().join(file).display());
        let mut command = tool("prometheus");
        command.args([flag("config.file", "prometheus.yml"), flag("storage.tsdb.path", "data")]);
        command.arg("--web.listen-address=127.0.0.1:0").stderr(File::create(dir.path().join("log")).unwrap());
        let process = command.spawn().expect("this test needs prometheus (cargo xtask setup)");
        let mut prometheus = Prometheus { dir, process, addr: ([127, 0, 0, 1], 0).into() };
        until("Prometheus listens", || {
            let ended = prometheus.process.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}: {}", prometheus.log());
            match ports(Pid::from_raw(prometheus.process.id() as i32))[..] {
                [port] => prometheus.addr.set_port(port),
                _ => return false,
            }
            true
        });
        prometheus
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// What is there at this path of its API. HTTP/1.0: the answer comes in one piece.
    fn api(&self, path: &str) -> Result<Value, String> {
        let (head, body) = ask(self.addr, &format!("GET /api/v1/{path} HTTP/1.0\r\n\r\n"));
        let answer: Value = serde_json::from_str(&body).map_err(|_| format!("{head}\n{body}"))?;
        if answer["status"] == "success" { Ok(answer["data"].clone()) } else { Err(answer["error"].to_string()) }
    }

    /// How many series a query has now.
    fn series(&self, query: &str) -> Result<usize, String> {
        let data = self.api(&format!("query?query={}", escaped(query))).map_err(|error| format!("{query}: {error}"))?;
        Ok(data["result"].as_array().unwrap().len())
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

fn escaped(query: &str) -> String {
    query.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// The dashboard's panels that show something.
fn panels() -> Vec<Value> {
    let dashboard: Value = serde_json::from_str(&fs::read_to_string(monitoring("grafana.json")).unwrap()).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    panels.iter().filter(|panel| panel["type"] != "row").cloned().collect()
}

/// The names of ours in a query.
fn names(query: &str) -> impl Iterator<Item = &str> {
    let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("dliofs_") || word.starts_with("process_"))
}

/// A real Prometheus looks at a mount that is used: every query of the dashboard shows something, every alert can be computed.
#[test]
fn prometheus_understands_the_metrics_the_dashboard_and_the_alerts() {
    needs!(MOUNTS, "prometheus");
    let (mut mount, addr) =
        serving(Elsewhere::default(), &["settle=0s", "fleet=one", "fleet_size=1", "clock_error=2ms"]);
    let prometheus = Prometheus::watching(addr);
    let up = format!("up{{instance=\"{addr}\"}} == 1");
    // Its port is there before it answers queries.
    until("Prometheus has looked at it", || prometheus.series(&up).is_ok_and(|series| series == 1));

    let exprs: Vec<String> = panels()
        .iter()
        .flat_map(|panel| panel["targets"].as_array().unwrap())
        .map(|target| target["expr"].as_str().unwrap())
        .map(|expr| {
            let expr =
                expr.replace("$instance", &addr.to_string()).replace("$mount", "train").replace("$dlio_job", "run7");
            expr.replace("$__rate_interval", "1m").replace("$__range", "1m")
        })
        .collect();
    assert!(exprs.len() > 40 && exprs.iter().all(|expr| !expr.contains('$')), "{exprs:#?}");
    let mut round = 0;
    for expr in &exprs {
        until(&format!("{expr} shows something"), || {
            // Something to be seen, one of the calls failing.
            round += 1;
            let file = mount.put(&format!("{round}"), crate::common::pattern(10_000));
            assert!(fs::read(file).unwrap().len() == 10_000 && fs::metadata(mount.at(format!("no-{round}"))).is_err());
            prometheus.series(expr).unwrap() > 0
        });
    }
    let instances = prometheus.api("label/instance/values?match[]=dliofs_build_info").unwrap();
    assert_eq!(instances, serde_json::json!([addr.to_string()]), "what the dashboard's variable lists");
    // Without these labels "All" is everything.
    assert_eq!(prometheus.series("dliofs_safe{none=~\".*\"}").unwrap(), 1);

    let (_, metrics) = get(addr, "/metrics");
    let scraped = mount.at("scraped");
    fs::write(&scraped, &metrics).unwrap();
    let said = promtool(tool("promtool").args(["check", "metrics"]).stdin(File::open(&scraped).unwrap()));
    assert_eq!(said, "", "promtool has no remark");
    let rules = || prometheus.api("rules").unwrap()["groups"][0]["rules"].as_array().unwrap().clone();
    until("every alert has been computed", || rules().iter().all(|rule| rule["health"] != "unknown"));
    let families: BTreeSet<&str> = families(&metrics).iter().map(|family| family.split(' ').next().unwrap()).collect();
    for rule in rules() {
        assert_eq!(rule["health"], "ok", "{rule}");
        let query = rule["query"].as_str().unwrap();
        prometheus.series(query).unwrap();
        assert!(names(query).all(|name| families.contains(name)), "{query} is about something that is not there");
    }
    let pending = "ALERTS{alertname=\"DlioFsNotScraped\"}";
    assert_eq!(prometheus.series(pending).unwrap(), 0);
    mount.stop();
    until("the alert knows that the mount has gone", || prometheus.series(pending).unwrap() == 1);
}

#[test]
fn the_alerts_fire_when_they_should() {
    needs!("promtool");
    let rules = monitoring("alerts.yml");
    promtool(tool("promtool").args(["check", "rules"]).arg(&rules));
    promtool(tool("promtool").args(["test", "rules"]).arg(monitoring("alerts_test.yml")));
    let text = |path: PathBuf| fs::read_to_string(path).unwrap();
    let (tests, manual) = (text(monitoring("alerts_test.yml")), text(monitoring("../docs/alerts.md")));
    let rules = text(rules);
    let alerts: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    let runbooks: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("runbook_url: ")).collect();
    assert_eq!(alerts.len(), runbooks.len());
    for (alert, runbook) in alerts.iter().zip(runbooks) {
        let (fires, named) = (format!("alertname=\"{alert}\""), format!("alertname: {alert}\n"));
        assert!(tests.contains(&fires) || tests.contains(&named), "{alert} has no test");
        // The anchor that the heading gets.
        let anchor = format!("'{{{{ $externalLabels.runbooks }}}}docs/alerts.md#{}'", alert.to_lowercase());
        assert_eq!(runbook, anchor);
        assert!(manual.contains(&format!("\n## {alert}\n\n")), "what to do about {alert} is not said");
    }
    let told = manual.lines().filter_map(|line| line.strip_prefix("## ")).collect::<Vec<_>>();
    assert_eq!(told, alerts, "in this order, and no other");
}

#[test]
fn the_dashboard_is_whole() {
    let mut places = BTreeSet::new();
    let dashboard: Value = serde_json::from_str(&fs::read_to_string(monitoring("grafana.json")).unwrap()).unwrap();
    let all = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = all.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), all.len(), "two panels have one id");
    for panel in all {
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().unwrap());
        assert!(x + w <= 24, "{panel} is beside the grid");
        for place in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(places.insert(place), "{} covers another", panel["title"]);
        }
    }
    for panel in panels() {
        assert!(
            panel["description"].as_str().is_some_and(|text| text.len() > 10),
            "{} is not described",
            panel["title"]
        );
        let targets = panel["targets"].as_array().unwrap();
        for asks in targets.iter().chain([&panel]) {
            assert_eq!(asks["datasource"]["uid"], "${datasource}", "{} asks one data source only", panel["title"]);
        }
        for target in targets {
            let expr = target["expr"].as_str().unwrap();
            let chosen = "instance=~\"$instance\", mount=~\"$mount\", dlio_job=~\"$dlio_job\"";
            // Each selector of the query: of all metrics, whichever mount is chosen, none.
            assert_eq!(
                expr.matches('{').count(),
                expr.matches(chosen).count(),
                "{expr} is about mounts that are not chosen"
            );
            assert!(expr.contains(chosen), "{expr} is about all mounts");
        }
    }
    let variables = dashboard["templating"]["list"].as_array().unwrap().iter();
    let variables: Vec<_> = variables.map(|variable| variable["name"].as_str().unwrap()).collect();
    assert_eq!(variables, ["datasource", "mount", "dlio_job", "instance"]);
    let exprs = dashboard["panels"].to_string();
    for shown in
        ["dliofs_fast_tier_fails", "dliofs_staged_copies", "dliofs_staged_copies_bytes", "dliofs_staged_bytes_total"]
    {
        assert!(exprs.contains(shown), "no panel shows {shown}");
    }
}
