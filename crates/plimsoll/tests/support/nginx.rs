//! nginx on a free port, as a peer of tests.

use std::fs;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::ports::free_port;
use super::{MAX_WAIT, Place};

/// Returns the command of nginx, wherever it is installed.
pub(crate) fn command() -> Command {
    let program = ["/usr/sbin/nginx", "/usr/bin/nginx", "/usr/local/sbin/nginx"]
        .into_iter()
        .find(|path| fs::exists(path).unwrap_or(false))
        .expect("nginx is missing: run `make setup`, which installs it");
    Command::new(program)
}

/// nginx as one process in the foreground.
pub(crate) struct Nginx {
    child: Child,
    pub(crate) port: u16,
}

impl Nginx {
    /// Serves `site/` with the certificates of the place; `more` are settings of the server.
    pub(crate) fn start(place: &Place, more: &str) -> Nginx {
        let (port, dir) = (free_port(), place.path(""));
        let config = format!(
            "http {{\n log_format reuse '$ssl_session_reused $status $body_bytes_sent$early';\n\
             log_format traces '$http_traceparent';\n\
             map $ssl_early_data $early {{ default \"\"; 1 \" early\"; }}\n\
             access_log access.log reuse; client_body_temp_path t1; proxy_temp_path t2;\n\
             fastcgi_temp_path t3; uwsgi_temp_path t4; scgi_temp_path t5;\n\
             server {{ listen 127.0.0.1:{port} ssl; ssl_protocols TLSv1.3;\n\
             ssl_certificate {0}/certs/server.crt; ssl_certificate_key {0}/certs/server.key;\n\
             ssl_session_cache shared:s:1m; keepalive_requests 100000; {more} root {0}/site; }} }}\n",
            dir.display()
        );
        Nginx::configured(place, &config, port)
    }

    /// Forwards TCP connections to `server` with a PROXY header (version 1).
    pub(crate) fn forwarding_tcp(place: &Place, server: &str) -> Nginx {
        // Debian installs the module separately, others have it built in.
        let modules = ["/usr/lib/nginx/modules", "/usr/lib64/nginx/modules"];
        let modules = modules.map(|folder| format!("{folder}/ngx_stream_module.so"));
        let module = modules
            .iter()
            .find(|file| fs::exists(file).unwrap_or(false));
        let load = module.map(|file| format!("load_module {file};\n"));
        let port = free_port();
        let config = format!(
            "{}stream {{ server {{ listen 127.0.0.1:{port}; proxy_pass {server}; proxy_protocol on; }} }}\n",
            load.unwrap_or_default()
        );
        Nginx::configured(place, &config, port)
    }

    /// Waits until it listens on `port`.
    fn configured(place: &Place, config: &str, port: u16) -> Nginx {
        let config = format!(
            "daemon off; master_process off; pid nginx.pid; error_log stderr crit;\n\
             {config}events {{ worker_connections 256; }}\n"
        );
        fs::write(place.path("nginx.conf"), config).expect("a file");
        let child = command()
            .arg("-p")
            .arg(place.path(""))
            .args(["-c", "nginx.conf", "-e", "stderr"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("nginx starts");
        let end = Instant::now() + MAX_WAIT;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < end, "nginx does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Nginx { child, port }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
