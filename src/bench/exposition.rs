//! Reads what a node's metrics say, in Prometheus' text format.

use std::collections::BTreeMap;

/// Every series with its value.
#[derive(Clone, Debug, Default)]
pub(super) struct Samples(BTreeMap<String, f64>);

/// One bucket: values up to `up_to`, and how many there were.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bucket {
    pub(super) up_to: f64,
    pub(super) count: f64,
}

impl Samples {
    /// Adds the series of one node.
    pub(super) fn add(&mut self, text: &str) {
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            if let Some((series, value)) = line.rsplit_once(' ')
                && let Ok(value) = value.parse::<f64>()
            {
                *self.0.entry(series.to_owned()).or_default() += value;
            }
        }
    }

    /// What came since `earlier`.
    pub(super) fn since(&self, earlier: &Self) -> Self {
        let of = |(series, value): (&String, &f64)| {
            (series.clone(), value - earlier.0.get(series).copied().unwrap_or(0.0))
        };
        Self(self.0.iter().map(of).collect())
    }

    /// Adds what another window brought.
    pub(super) fn merge(&mut self, other: &Self) {
        for (series, value) in &other.0 {
            *self.0.entry(series.clone()).or_default() += value;
        }
    }

    /// The sum over all series of a name.
    pub(super) fn total(&self, name: &str) -> f64 {
        let of = |(series, value): (&String, &f64)| (name_of(series) == name).then_some(*value);
        self.0.iter().filter_map(of).sum()
    }

    /// How many values a histogram holds.
    pub(super) fn count(&self, name: &str) -> f64 {
        self.total(&format!("{name}_count"))
    }

    /// The mean of a histogram's values; 0 if there are none.
    pub(super) fn mean(&self, name: &str) -> f64 {
        let count = self.count(name);
        if count > 0.0 { self.total(&format!("{name}_sum")) / count } else { 0.0 }
    }

    /// The buckets of a histogram, each without those below it.
    pub(super) fn buckets(&self, name: &str) -> Vec<Bucket> {
        let mut sums: Vec<Bucket> = Vec::new();
        for (series, value) in self.0.iter().filter(|(series, _)| name_of(series) == format!("{name}_bucket"))
        {
            let limit = series.split_once("le=\"").and_then(|(_, rest)| rest.split_once('"'));
            let up_to = limit.map_or(f64::INFINITY, |(le, _)| le.parse().unwrap_or(f64::INFINITY));
            match sums.iter_mut().find(|bucket| bucket.up_to.total_cmp(&up_to).is_eq()) {
                Some(bucket) => bucket.count += value,
                None => sums.push(Bucket { up_to, count: *value }),
            }
        }
        sums.sort_by(|a, b| a.up_to.total_cmp(&b.up_to));
        let mut below = 0.0;
        for bucket in &mut sums {
            (bucket.count, below) = (bucket.count - below, bucket.count);
        }
        sums
    }

    /// The upper end of the bucket in which a quantile lies; 0 if there are no values.
    pub(super) fn quantile(&self, name: &str, quantile: f64) -> f64 {
        let mut left = self.count(name) * quantile;
        let buckets = self.buckets(name);
        for bucket in buckets.iter().filter(|bucket| bucket.count > 0.0) {
            left -= bucket.count;
            if left <= 0.0 {
                return bucket.up_to;
            }
        }
        0.0
    }
}

fn name_of(series: &str) -> &str {
    series.split_once('{').map_or(series, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# TYPE size histogram\nsize_bucket{le=\"1\"} 2\nsize_bucket{le=\"8\"} 5\n\
        size_bucket{le=\"+Inf\"} 6\nsize_sum 40\nsize_count 6\nrows{table=\"a\"} 3\nrows{table=\"b\"} 4\n";

    #[test]
    fn series_are_summed_by_name_and_buckets_are_told_apart() {
        let mut samples = Samples::default();
        samples.add(TEXT);
        assert!((samples.total("rows") - 7.0).abs() < 1e-9);
        assert!((samples.mean("size") - 40.0 / 6.0).abs() < 1e-9);
        let counts: Vec<f64> = samples.buckets("size").iter().map(|bucket| bucket.count).collect();
        assert_eq!(counts, [2.0, 3.0, 1.0]);
        assert!((samples.quantile("size", 0.5) - 8.0).abs() < 1e-9);
        assert!(samples.quantile("size", 0.99).is_infinite());
    }

    #[test]
    fn a_window_is_what_came_since() {
        let (mut earlier, mut later) = (Samples::default(), Samples::default());
        earlier.add("rows{table=\"a\"} 3\n");
        later.add(TEXT);
        assert!((later.since(&earlier).total("rows") - 4.0).abs() < 1e-9);
    }
}
