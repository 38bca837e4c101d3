//! Counts the tokens of answers with the plan's tokenizer, in another thread than the worker that received them.

use super::RecordedInterval;
use crate::metrics::measure::Count;
use crate::plan::TokenCounter;

impl RecordedInterval {
    /// Counts the tokens of the stored answers. This is slow, so workers leave it to other threads.
    pub fn count_tokens(&mut self, counter: &TokenCounter) {
        for (stage, text) in std::mem::take(&mut self.texts) {
            let measures = &mut self.stage_mut(stage).measures;
            match counter.count(&text) {
                Some(tokens) => measures.add(Count::TokensCounted, tokens),
                None => measures.add(Count::AnswersUncounted, 1),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_count_once_in_own_stage() {
        let counter = TokenCounter::new("words.json".as_ref(), |text| match text {
            "" => None,
            text => Some(text.split(' ').count() as u64),
        });
        let mut interval = RecordedInterval::default();
        for (stage, text) in [(0, "a b"), (1, "a b c"), (1, ""), (1, "d")] {
            interval.texts.push((stage, text.to_owned()));
        }
        for _ in 0..2 {
            interval.count_tokens(&counter);
            let of = |stage: u8, count| match interval.recorded_stages().find(|(s, _)| *s == stage)
            {
                Some((_, record)) => record.measures.counter(count),
                None => 0,
            };
            assert_eq!([0, 1].map(|s| of(s, Count::TokensCounted)), [2, 4]);
            assert_eq!([0, 1].map(|s| of(s, Count::AnswersUncounted)), [0, 1]);
        }
        interval.clear();
        assert!(interval.is_empty());
    }
}
