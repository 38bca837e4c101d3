//! The reference server `orders`: `orders.OrderService/Submit`, in which a pool of workers takes orders from
//! a bounded queue.
//!
//! The pool is a fair semaphore: a permit is a worker, and the tasks that wait for a permit are the FIFO queue. At
//! most [`OrdersOptions::pool`] orders are in progress at any moment. An order whose client disconnects leaves the
//! queue or the pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Args;
use tokio::sync::{Semaphore, SemaphorePermit, TryAcquireError};
use tonic::codec::CompressionEncoding;
use tonic::{Request, Response, Status};

use super::compression::ResponseCompression;
use super::generated::orders::order_service_server::{OrderService, OrderServiceServer};
use super::generated::orders::{Order, OrderReply};
use super::reflection_service::with_reflection;
use plimsoll_serving::reference::{ReferenceServer, ServeContext, ServerCounts, ServerFuture};
use plimsoll_serving::response_timing::{ResponseDelay, ResponseScheduler, ResponseTiming};
use plimsoll_serving::{ServeError, http2};

/// orders.OrderService/Submit: a pool of workers that take orders from a queue.
#[derive(Args, Clone, Debug)]
#[command(before_help = "Example: ten workers, 1 ms for an order\n  \
    plimsoll serve orders --listen 127.0.0.1:50052 --pool 10 --processing 1ms")]
pub struct OrdersOptions {
    // During a stall, workers keep their orders.
    /// When and how calls are answered.
    #[command(flatten)]
    pub answers: ResponseTiming,

    /// Maximum number of orders in progress at once.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub pool: usize,

    /// Orders that may wait; further ones are refused with RESOURCE_EXHAUSTED.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub queue: usize,

    /// Processing time of an order: "1ms", "1ms..9ms" (uniform) or "exp:5ms" (exponential).
    #[arg(long, value_name = "TIME", default_value = "0s")]
    pub processing: ResponseDelay,
}

impl ReferenceServer for OrdersOptions {
    const COMMAND_NAME: &str = "orders";

    fn start(self, context: ServeContext) -> Result<ServerFuture, ServeError> {
        if self.pool == 0 || self.pool > Semaphore::MAX_PERMITS {
            return Err(ServeError::invalid_option(
                "pool",
                format!(
                    "{} workers can't serve anything; give at least 1",
                    self.pool
                ),
            ));
        }
        let orders = Arc::new(OrderHandler {
            scheduler: ResponseScheduler::new(self.processing, self.answers)?,
            workers: Semaphore::new(self.pool),
            queue: self.queue as u64,
            received: AtomicU64::new(0),
            processed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            waiting: PeakGauge::default(),
            in_progress: PeakGauge::default(),
        });
        let service = OrderServiceServer::from_arc(Arc::clone(&orders))
            .accept_compressed(CompressionEncoding::Gzip)
            .send_compressed(CompressionEncoding::Gzip);
        let service = with_reflection(service, "orders.OrderService")?;
        Ok(Box::pin(async move {
            let connections = http2::serve(context.bound, service, context.stopped).await?;
            let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            let (received, processed, refused) = (
                read(&orders.received),
                read(&orders.processed),
                read(&orders.refused),
            );
            // Orders that the client cancelled, or whose connection ended.
            let abandoned = received.saturating_sub(processed + refused);
            Ok(ServerCounts {
                connections,
                counts: vec![
                    ("processed", processed),
                    ("received", received),
                    ("refused", refused),
                    ("abandoned", abandoned),
                    ("most in progress", read(&orders.in_progress.peak)),
                    ("most waiting", read(&orders.waiting.peak)),
                ],
            })
        }))
    }
}

struct OrderHandler {
    scheduler: ResponseScheduler,
    workers: Semaphore,
    queue: u64,
    /// All orders received.
    received: AtomicU64,
    /// Orders answered.
    processed: AtomicU64,
    /// Orders refused because the queue was full.
    refused: AtomicU64,
    waiting: PeakGauge,
    in_progress: PeakGauge,
}

impl OrderHandler {
    /// Waits in the queue for a worker, if none is free, and returns it.
    async fn acquire_worker(&self) -> Result<SemaphorePermit<'_>, Status> {
        match self.workers.try_acquire() {
            Ok(worker) => return Ok(worker),
            Err(TryAcquireError::Closed) => return Err(Status::unavailable("the pool is closed")),
            Err(TryAcquireError::NoPermits) => {}
        }
        let Some(_place) = self.waiting.increment(self.queue) else {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(Status::resource_exhausted(format!(
                "the queue is full: {} orders wait for a worker",
                self.queue
            )));
        };
        self.workers
            .acquire()
            .await
            .map_err(|_| Status::unavailable("the pool is closed"))
    }
}

#[tonic::async_trait]
impl OrderService for OrderHandler {
    async fn submit(&self, order: Request<Order>) -> Result<Response<OrderReply>, Status> {
        self.received.fetch_add(1, Ordering::Relaxed);
        let _worker = self.acquire_worker().await?;
        let _busy = self.in_progress.increment(u64::MAX);
        self.scheduler.wait().await;
        self.processed.fetch_add(1, Ordering::Relaxed);
        let packing = ResponseCompression::from_metadata(order.metadata());
        Ok(packing.build_response(OrderReply { received: true }))
    }
}

/// A gauge with its current and its maximum value.
#[derive(Default)]
struct PeakGauge {
    current: AtomicU64,
    peak: AtomicU64,
}

impl PeakGauge {
    /// Increments the gauge until the guard is dropped; returns `None` if `limit` is reached.
    fn increment(&self, limit: u64) -> Option<GaugeGuard<'_>> {
        let before = self.current.fetch_add(1, Ordering::Relaxed);
        let inside = GaugeGuard(self);
        if before >= limit {
            return None;
        }
        self.peak.fetch_max(before + 1, Ordering::Relaxed);
        Some(inside)
    }
}

struct GaugeGuard<'a>(&'a PeakGauge);

impl Drop for GaugeGuard<'_> {
    fn drop(&mut self) {
        self.0.current.fetch_sub(1, Ordering::Relaxed);
    }
}
