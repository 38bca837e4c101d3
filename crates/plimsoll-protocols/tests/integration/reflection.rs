//! Tests with servers of incomplete reflection: an older version only, something else in place of the newer
//! one, unlisted services, types that no service refers to.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use plimsoll_engine::Address;
use plimsoll_protocols::grpc::client::{GrpcConnection, ServerEndpoint};
use plimsoll_protocols::grpc::reflection::{
    ReflectionError, SchemaQuery, request_schema, request_schema_within,
};
use plimsoll_protocols::grpc::schema::Schema;
use prost_reflect::prost::Message as _;
use prost_reflect::prost_types::{
    FileDescriptorProto, FileDescriptorSet, MethodDescriptorProto, ServiceDescriptorProto,
};
use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{Request, Response};
use tonic::{Code, Status};
use tonic_reflection::server::Builder;

/// The service `a.S`, whose request may carry any message, and a file with such a message.
const FILES: [(&str, &str); 2] = [
    (
        "a.proto",
        r#"syntax = "proto3"; package a; import "google/protobuf/any.proto";
        message Q { google.protobuf.Any payload = 1; }
        service S { rpc Do(Q) returns (Q); }"#,
    ),
    (
        "b.proto",
        r#"syntax = "proto3"; package b; message Y { string sku = 1; }"#,
    ),
];

/// What a server has in place of grpc.reflection.v1.
#[derive(Clone, Copy, Debug)]
enum V1Reply {
    Reflection,
    /// An HTML page with this HTTP status.
    Page(u16),
    Status(Code),
    /// The stream is reset.
    Reset,
}

fn descriptors() -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in FILES {
        std::fs::write(folder.path().join(name), text).expect("a file");
    }
    let mut compiler = protox::Compiler::new([folder.path()]).expect("a compiler");
    compiler.include_imports(true);
    for (name, _) in FILES {
        compiler.open_file(name).expect("a source");
    }
    compiler.encode_file_descriptor_set()
}

/// Serves v1alpha, and `newer` in place of v1; `listed` is the service that it lists.
async fn serve(newer: V1Reply, older: bool, listed: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let set: Arc<[u8]> = descriptors().into();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            let set = Arc::clone(&set);
            let service = service_fn(move |request: Request<Incoming>| {
                answer(Arc::clone(&set), newer, older, listed, request)
            });
            let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
        }
    });
    address
}

async fn answer(
    set: Arc<[u8]>,
    newer: V1Reply,
    older: bool,
    listed: &'static str,
    request: Request<Incoming>,
) -> Result<Response<Body>, &'static str> {
    let builder = || {
        Builder::configure()
            .register_encoded_file_descriptor_set(&set)
            .with_service_name(listed)
    };
    let is_newer = request.uri().path().starts_with("/grpc.reflection.v1.");
    let newer = match is_newer {
        true => newer,
        false if older => V1Reply::Reflection,
        false => V1Reply::Status(Code::Unimplemented),
    };
    let answered: Result<Response<Body>, Infallible> = match newer {
        V1Reply::Reflection if is_newer => builder().build_v1().expect("v1").call(request).await,
        V1Reply::Reflection => {
            let mut service = builder().build_v1alpha().expect("v1alpha");
            service.call(request).await
        }
        V1Reply::Page(status) => {
            let page = Response::builder().status(status);
            let page = page.header("content-type", "text/html");
            Ok(page
                .body(Body::new("<html>none</html>".to_owned()))
                .expect("a page"))
        }
        V1Reply::Status(code) => Ok(Status::new(code, "upstream reset").into_http()),
        V1Reply::Reset => return Err("reset"),
    };
    Ok(answered.unwrap_or_else(|never| match never {}))
}

async fn connect(address: SocketAddr) -> GrpcConnection {
    let server = ServerEndpoint {
        addresses: [Address::Tcp(address)].into(),
        tunnel: None,
        tls: None,
        authority: address.to_string(),
        metadata: Vec::new(),
        connect_timeout: Duration::from_secs(300),
    };
    GrpcConnection::open(&server).await.expect("a server")
}

async fn fetch_schema(
    address: SocketAddr,
    inquiry: SchemaQuery<'_>,
    types: &[&str],
) -> Result<Schema, ReflectionError> {
    let connection = connect(address).await;
    let types: Vec<String> = types.iter().map(|name| (*name).to_owned()).collect();
    request_schema(&connection, inquiry, &types).await
}

const EXPECTED_LISTING: &str = "a.S/Do (unary): a.Q -> a.Q\n";

#[tokio::test]
async fn any_v1_failure_falls_back_to_v1alpha() {
    for newer in [
        V1Reply::Reflection,
        V1Reply::Page(404),
        V1Reply::Page(401),
        V1Reply::Page(502),
        V1Reply::Page(200),
        V1Reply::Status(Code::Unavailable),
        V1Reply::Status(Code::PermissionDenied),
        V1Reply::Status(Code::Unimplemented),
        V1Reply::Reset,
    ] {
        let address = serve(newer, true, "a.S").await;
        let found = fetch_schema(address, SchemaQuery::Services, &[]).await;
        let found = found.unwrap_or_else(|e| panic!("{newer:?}: {e}"));
        assert_eq!(found.list_methods(), EXPECTED_LISTING, "{newer:?}");
    }
}

#[tokio::test]
async fn error_reports_v1_reflection_failure() {
    for (newer, expected) in [
        (
            V1Reply::Page(502),
            "status UNAVAILABLE: HTTP status 502, content-type text/html",
        ),
        (
            V1Reply::Page(401),
            "status UNAUTHENTICATED: HTTP status 401",
        ),
        (
            V1Reply::Status(Code::PermissionDenied),
            "status PERMISSION_DENIED: upstream reset",
        ),
        (V1Reply::Page(404), "the server has no reflection"),
    ] {
        let address = serve(newer, false, "a.S").await;
        let error = fetch_schema(address, SchemaQuery::Services, &[])
            .await
            .expect_err("none");
        let said = error.to_string();
        assert!(said.contains(expected), "{newer:?}: {said}");
    }
}

#[tokio::test]
async fn unlisted_symbols_can_be_described() {
    let address = serve(V1Reply::Reflection, true, "b.None").await;
    let found = fetch_schema(address, SchemaQuery::Symbol("a.S"), &[]).await;
    assert_eq!(found.expect("a schema").list_methods(), EXPECTED_LISTING);
    let found = fetch_schema(address, SchemaQuery::Symbol("b.Y"), &[]).await;
    let described = found.expect("a schema").describe("b.Y").expect("a type");
    assert!(described.contains("string sku = 1;"), "{described}");
    // Listed services can be suggested.
    let address = serve(V1Reply::Reflection, true, "a.S").await;
    let found = fetch_schema(address, SchemaQuery::Symbol("a.s"), &[]).await;
    assert_eq!(found.expect("a schema").list_methods(), EXPECTED_LISTING);
}

#[tokio::test]
async fn any_payload_types_are_fetched() {
    let json = r#"{"payload": {"@type": "type.googleapis.com/b.Y", "sku": "x"}}"#;
    let address = serve(V1Reply::Reflection, true, "a.S").await;
    let bare = fetch_schema(address, SchemaQuery::Symbol("a.S"), &[])
        .await
        .expect("a schema");
    let method = bare.method("a.S/Do").expect("a method");
    assert!(bare.encode(&method, json).is_err());
    let types = ["b.Y", "no.Such"];
    let whole = fetch_schema(address, SchemaQuery::Symbol("a.S"), &types)
        .await
        .expect("a schema");
    let method = whole.method("a.S/Do").expect("a method");
    let bytes = whole.encode(&method, json).expect("a message");
    assert!(bytes.windows(3).any(|part| part == b"b.Y"), "{bytes:?}");
}

/// Encodes a descriptor set of `files` files with `services` services each.
fn large_set(files: usize, services: usize) -> Vec<u8> {
    let method = MethodDescriptorProto {
        name: Some("Do".to_owned()),
        input_type: Some(".google.protobuf.Empty".to_owned()),
        output_type: Some(".google.protobuf.Empty".to_owned()),
        ..MethodDescriptorProto::default()
    };
    let service = |file: usize, service: usize| ServiceDescriptorProto {
        name: Some(format!("S{file:04}x{service:04}")),
        method: vec![method.clone()],
        ..ServiceDescriptorProto::default()
    };
    let file = |file: usize| FileDescriptorProto {
        name: Some(format!("large/{file}.proto")),
        package: Some("large".to_owned()),
        dependency: vec!["google/protobuf/empty.proto".to_owned()],
        service: (0..services).map(|n| service(file, n)).collect(),
        syntax: Some("proto3".to_owned()),
        ..FileDescriptorProto::default()
    };
    let set = FileDescriptorSet {
        file: (0..files).map(file).collect(),
    };
    set.encode_to_vec()
}

/// Serves the reflection of `set`. The counter counts the queries.
async fn serve_large(set: &[u8]) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let reflection = Builder::configure()
        .include_reflection_service(false)
        .register_encoded_file_descriptor_set(set)
        .build_v1()
        .expect("v1");
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.expect("a connection");
        let service = service_fn(move |request: Request<Incoming>| {
            counter.fetch_add(1, Ordering::Relaxed);
            reflection.clone().call(request)
        });
        let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let _ = http.serve_connection(TokioIo::new(stream), service).await;
    });
    (address, asked)
}

/// Six thousand services, in one file and in thousands: each file is queried once, except by concurrent
/// queries.
#[tokio::test]
async fn thousands_of_services_are_listed() {
    for (files, services) in [(1, 6_000), (3_000, 2)] {
        let (address, asked) = serve_large(&large_set(files, services)).await;
        let found = fetch_schema(address, SchemaQuery::Services, &[]).await;
        let found = found.unwrap_or_else(|e| panic!("{files} files: {e}"));
        assert_eq!(found.list_methods().lines().count(), 6_000, "{files} files");
        let questions = asked.load(Ordering::Relaxed);
        let most = 1 + if files == 1 { 8 } else { 6_000 };
        assert!(questions <= most, "{files} files: {questions} questions");
    }
}

#[tokio::test]
async fn slow_reflection_server_times_out() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.expect("a connection");
        // No call is answered.
        let service = service_fn(|_: Request<Incoming>| {
            std::future::pending::<Result<Response<Body>, Infallible>>()
        });
        let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let _ = http.serve_connection(TokioIo::new(stream), service).await;
    });
    let connection = connect(address).await;
    let limit = Duration::from_millis(200);
    let asked = request_schema_within(limit, &connection, SchemaQuery::Services, &[]).await;
    let error = asked.expect_err("a server that is too slow");
    assert_eq!(
        error.to_string(),
        "the server sent only 0 of its files within 0.2 s: its reflection is too slow"
    );
    assert!(error.advice().is_some_and(|text| text.contains("describe")));
}
