//! A slab with generational keys. Keys are not reused, so an event that arrives too late, for a removed entry, finds
//! nothing. Scripts use it, and relays use it for their connections and calls.

/// A slab whose keys contain an index in the low `PLACE` bits and, in the `GENERATION` bits above, the number of times
/// that the index has been used.
#[derive(Debug)]
pub struct GenerationalSlab<T, const PLACE: u32 = 32, const GENERATION: u32 = 31> {
    places: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T, const PLACE: u32, const GENERATION: u32> Default
    for GenerationalSlab<T, PLACE, GENERATION>
{
    fn default() -> Self {
        GenerationalSlab {
            places: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T, const PLACE: u32, const GENERATION: u32> GenerationalSlab<T, PLACE, GENERATION> {
    /// Adds an entry and returns its key.
    pub fn insert(&mut self, thing: T) -> u64 {
        let key = self.reserve();
        self.put_back(key, thing);
        key
    }

    /// Reserves a key whose entry is [stored](GenerationalSlab::put_back) later, or that is
    /// [released](GenerationalSlab::release).
    pub fn reserve(&mut self) -> u64 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            (self.places.len() - 1) as u32
        });
        let (generation, _) = &mut self.places[place as usize];
        *generation = (*generation + 1) & ((1 << GENERATION) - 1);
        u64::from(*generation) << PLACE | u64::from(place)
    }

    /// Returns the number of entries, reserved keys included.
    #[inline]
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Returns whether there is no entry.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    fn index_of(key: u64) -> usize {
        (key & ((1 << PLACE) - 1)) as usize
    }

    /// Returns the entry with this key; `None` if it was removed.
    #[inline]
    pub fn get(&self, key: u64) -> Option<&T> {
        match self.places.get(Self::index_of(key)) {
            Some((generation, slot)) if u64::from(*generation) == key >> PLACE => slot.as_ref(),
            _ => None,
        }
    }

    /// Returns the entry with this key for modification; `None` if it was removed.
    #[inline]
    pub fn get_mut(&mut self, key: u64) -> Option<&mut T> {
        match self.places.get_mut(Self::index_of(key)) {
            Some((generation, slot)) if u64::from(*generation) == key >> PLACE => slot.as_mut(),
            _ => None,
        }
    }

    /// Removes an entry and its key.
    #[inline]
    pub fn remove(&mut self, key: u64) -> Option<T> {
        let removed = self.check_out(key)?;
        self.release(key);
        Some(removed)
    }

    /// Takes an entry out and keeps its key reserved until it is [put back](GenerationalSlab::put_back) or
    /// [released](GenerationalSlab::release).
    #[inline]
    pub fn check_out(&mut self, key: u64) -> Option<T> {
        self.get(key)?;
        self.places[Self::index_of(key)].1.take()
    }

    /// Stores an entry under a key that was reserved, or whose entry was [checked out](GenerationalSlab::check_out).
    #[inline]
    pub fn put_back(&mut self, key: u64, lifted: T) {
        self.places[Self::index_of(key)].1 = Some(lifted);
    }

    /// Frees a key that was reserved, or whose entry was [checked out](GenerationalSlab::check_out).
    #[inline]
    pub fn release(&mut self, key: u64) {
        self.free.push(Self::index_of(key) as u32);
    }

    /// Returns the keys of all entries.
    pub fn keys(&self) -> Vec<u64> {
        let places = self.places.iter().enumerate();
        let taken = places.filter(|(_, (_, slot))| slot.is_some());
        taken
            .map(|(place, (generation, _))| u64::from(*generation) << PLACE | place as u64)
            .collect()
    }

    /// Removes and returns the entries for which `is_one` returns true.
    pub fn remove_if(&mut self, is_one: impl Fn(&T) -> bool) -> Vec<T> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut keys = self.keys();
        keys.retain(|key| self.get(*key).is_some_and(&is_one));
        keys.into_iter()
            .filter_map(|key| self.remove(key))
            .collect()
    }

    /// Returns all entries.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.places.iter().filter_map(|(_, slot)| slot.as_ref())
    }

    /// Consumes the slab and returns all entries.
    pub fn into_values(self) -> impl Iterator<Item = T> {
        self.places.into_iter().filter_map(|(_, slot)| slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_key_finds_no_entry() {
        let mut keyed = GenerationalSlab::<char>::default();
        let a = keyed.insert('a');
        assert_eq!(keyed.get(a), Some(&'a'));
        let lifted = keyed.check_out(a).unwrap();
        assert!(keyed.get(a).is_none() && keyed.remove(a).is_none());
        // The index is not reused while its entry is checked out.
        let b = keyed.insert('b');
        keyed.put_back(a, lifted);
        assert_eq!(keyed.keys(), [a, b]);
        assert_eq!(keyed.remove(a), Some('a'));
        let unused = keyed.reserve();
        assert!(keyed.get(unused).is_none());
        keyed.release(unused);
        let c = keyed.insert('c');
        assert_eq!(c as u32, a as u32, "the place is used again");
        assert!(c != a && keyed.get_mut(a).is_none());
        assert_eq!(keyed.into_values().collect::<String>(), "cb");
    }
}
