//! The names under which model servers publish their metrics, and how values of several engines are combined.

use super::{MetricKind, ServerMetric};

/// The metrics with the names that servers give them, the preferred name first.
pub(super) const SERIES_NAMES: [(ServerMetric, &[&str]); ServerMetric::ALL.len()] = [
    (
        ServerMetric::RequestsRunning,
        &[
            "vllm:num_requests_running",
            "sglang:num_running_reqs",
            "tgi_batch_current_size",
            "llamacpp:requests_processing",
            "plimsoll_llm_requests_running",
        ],
    ),
    (
        ServerMetric::RequestsWaiting,
        &[
            "vllm:num_requests_waiting",
            "sglang:num_queue_reqs",
            "tgi_queue_size",
            "llamacpp:requests_deferred",
            "plimsoll_llm_requests_waiting",
        ],
    ),
    (
        ServerMetric::KvCacheUsage,
        &[
            "vllm:kv_cache_usage_perc",
            "vllm:gpu_cache_usage_perc",
            "sglang:token_usage",
            "llamacpp:kv_cache_usage_ratio",
        ],
    ),
    (
        ServerMetric::PrefixCacheHitShare,
        &["sglang:cache_hit_rate", "vllm:gpu_prefix_cache_hit_rate"],
    ),
    (
        ServerMetric::PrefixCacheQueries,
        &[
            "vllm:prefix_cache_queries_total",
            "vllm:gpu_prefix_cache_queries_total",
        ],
    ),
    (
        ServerMetric::PrefixCacheHits,
        &[
            "vllm:prefix_cache_hits_total",
            "vllm:gpu_prefix_cache_hits_total",
        ],
    ),
    (
        ServerMetric::Preemptions,
        &[
            "vllm:num_preemptions_total",
            "sglang:num_retracted_requests_total",
        ],
    ),
    (
        ServerMetric::PromptTokens,
        &[
            "vllm:prompt_tokens_total",
            "sglang:prompt_tokens_total",
            // TGI counts tokens only as sums of histograms.
            "tgi_request_input_length_sum",
            "llamacpp:prompt_tokens_total",
        ],
    ),
    (
        ServerMetric::GeneratedTokens,
        &[
            "vllm:generation_tokens_total",
            "sglang:generation_tokens_total",
            "tgi_request_generated_tokens_sum",
            "llamacpp:tokens_predicted_total",
            "plimsoll_llm_tokens_total",
        ],
    ),
];

/// Returns the metric with this name on some server, and the name's place among the names of the metric.
pub(super) fn find(name: &str) -> Option<(ServerMetric, usize)> {
    SERIES_NAMES.iter().find_map(|(metric, names)| {
        let place = names.iter().position(|known| *known == name)?;
        Some((*metric, place))
    })
}

/// The values of one name in a reading, one for each set of labels.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SeriesAggregation {
    sum: f64,
    highest: f64,
    count: u32,
}

impl SeriesAggregation {
    pub(super) fn add(&mut self, value: f64) {
        self.sum += value;
        self.highest = self.highest.max(value);
        self.count += 1;
    }

    /// Returns the value of `metric` over all engines and models of the server.
    pub(super) fn combine(self, metric: ServerMetric) -> f64 {
        match (metric.kind(), metric) {
            (MetricKind::Share, ServerMetric::KvCacheUsage) => self.highest,
            (MetricKind::Share, _) => self.sum / f64::from(self.count.max(1)),
            (MetricKind::Level | MetricKind::Counter, _) => self.sum,
        }
    }
}
