//! `staunch healthcheck`: whether a gateway on this host is ready, told by the exit code.
//!
//! For images without curl. It asks `/readyz` of the admin listener with a deadline for the whole question, and needs no
//! configuration, no runtime and no other crate; what ready means is the admin listener's to say.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

/// Each of connecting, asking and answering; a gateway that needs longer on its own host is not well.
const PATIENCE: Duration = Duration::from_secs(1);

/// An answer's head and its short body fit; more is not read.
const ANSWER_BYTES_MAX: u64 = 4096;

/// 0 if the gateway behind this admin address is ready; else 1, and why on stderr.
#[must_use]
pub fn run(admin: SocketAddr) -> ExitCode {
    match ask(admin) {
        Ok(answer) if answer.starts_with("HTTP/1.1 200 ") => ExitCode::SUCCESS,
        Ok(answer) => failed(admin, answer.lines().next().unwrap_or("no answer")),
        Err(error) => failed(admin, &error.to_string()),
    }
}

fn failed(admin: SocketAddr, reason: &str) -> ExitCode {
    eprintln!("staunch: not ready at {admin}: {reason}");
    ExitCode::FAILURE
}

fn ask(admin: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&admin, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // In one piece: a listener that answers the first of several and closes would reset the rest, and its answer with it.
    stream.write_all(format!("GET /readyz HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread;

    fn told(answer: &'static str) -> ExitCode {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let admin = listener.local_addr().unwrap();
        let served = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut question = [0; 1024];
            let read = stream.read(&mut question).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8_lossy(&question[..read]).into_owned()
        });
        let code = run(admin);
        assert!(served.join().unwrap().starts_with("GET /readyz HTTP/1.1\r\n"));
        code
    }

    #[test]
    fn a_gateway_that_says_it_is_ready_is_healthy() {
        assert_eq!(told("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"), ExitCode::SUCCESS);
    }

    #[test]
    fn a_draining_gateway_and_one_that_says_nothing_are_not() {
        assert_eq!(told("HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"), ExitCode::FAILURE);
        assert_eq!(told(""), ExitCode::FAILURE);
    }

    #[test]
    fn nobody_listening_is_not_healthy() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let admin = listener.local_addr().unwrap();
        drop(listener);
        assert_eq!(run(admin), ExitCode::FAILURE);
    }
}
