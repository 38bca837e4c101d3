use super::*;

#[test]
fn shard_parts_sum_to_whole() {
    for (whole, of) in [(10u64, 3u32), (1, 4), (0, 2), (1_000_000, 7)] {
        let parts: Vec<u64> = (0..of)
            .map(|index| Shard { index, of }.share(whole))
            .collect();
        assert_eq!(parts.iter().sum::<u64>(), whole);
        assert!(parts.iter().max().unwrap() - parts.iter().min().unwrap() <= 1);
    }
}

#[test]
fn nested_shards_partition_whole() {
    for (whole, shards, workers) in [(6u64, 2u32, 2u32), (7, 3, 2), (1_000, 7, 3), (2, 3, 4)] {
        let mut places = Vec::new();
        for index in 0..shards {
            let shard = Shard { index, of: shards };
            let inner: Vec<Shard> = (0..workers).map(|w| shard.sub_shard(w, workers)).collect();
            let parts: u64 = inner.iter().map(|i| i.share(whole)).sum();
            assert_eq!(parts, shard.share(whole));
            places.extend(inner.iter().map(|i| i.index));
        }
        places.sort_unstable();
        assert_eq!(places, (0..shards * workers).collect::<Vec<_>>());
    }
}
