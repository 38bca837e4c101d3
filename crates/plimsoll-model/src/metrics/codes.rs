//! Macros for closed lists of stable codes. Run directories, reports and exports contain the codes, so a code is never
//! changed.
//!
//! A value is the position of its code in the list. A code that several parts of the program use has a named constant
//! in the list. A code of a single protocol has its constant in that protocol's module, and `_` in the list.

/// Returns the position of `wanted` among `codes`. It is a `const fn`, for use in constants. A code that does not exist
/// is a compile error.
pub(crate) const fn code_position(codes: &[&str], wanted: &str) -> usize {
    let mut place = 0;
    while place < codes.len() {
        let (code, wanted) = (codes[place].as_bytes(), wanted.as_bytes());
        let mut at = 0;
        while at < code.len() && at < wanted.len() && code[at] == wanted[at] {
            at += 1;
        }
        if at == code.len() && at == wanted.len() {
            return place;
        }
        place += 1;
    }
    panic!("there is no such code")
}

macro_rules! name {
    ($kind:ident $coded:ident _ $code:literal $explanation:expr) => {};
    ($kind:ident $coded:ident $name:ident $code:literal $explanation:expr) => {
        #[doc = $explanation]
        pub const $name: $kind = $kind::$coded($code);
    };
}

/// Defines a type and its list of codes. The three names in parentheses become functions of the type: a `const` lookup
/// by code that panics, value to code, and a lookup by code that returns an `Option`.
macro_rules! codes {
    ($(#[$about:meta])* $kind:ident($coded:ident, $code_of:ident, $from:ident):
     $($name:tt $code:literal $explanation:expr;)*) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $kind(u8);

        #[expect(non_upper_case_globals, reason = "they read as the variants of an enum, and match like them")]
        impl $kind {
            const CODES: &[&str] = &[$($code,)*];
            const EXPLANATIONS: &[&str] = &[$($explanation,)*];

            /// The number of values.
            pub const COUNT: usize = $kind::CODES.len();

            $($crate::metrics::codes::name!($kind $coded $name $code $explanation);)*

            /// Returns every value in order.
            pub fn all() -> impl Iterator<Item = $kind> {
                (0..$kind::COUNT as u8).map($kind)
            }

            /// Returns the value of this code. It is a `const fn`, for use in constants.
            ///
            /// # Panics
            /// If the code does not exist; in a constant this is a compile error.
            pub const fn $coded(code: &str) -> $kind {
                $kind($crate::metrics::codes::code_position($kind::CODES, code) as u8)
            }

            /// Returns the value of this code, if it exists.
            pub fn $from(code: &str) -> Option<$kind> {
                $kind::all().find(|one| one.$code_of() == code)
            }

            /// Returns the stable code.
            pub fn $code_of(self) -> &'static str {
                $kind::CODES[self.index()]
            }

            /// Returns a description for reports.
            pub fn explanation(self) -> &'static str {
                $kind::EXPLANATIONS[self.index()]
            }

            /// Returns the position in the list.
            #[inline]
            pub fn index(self) -> usize {
                usize::from(self.0)
            }
        }

        impl std::fmt::Debug for $kind {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.$code_of())
            }
        }
    };
}

pub(crate) use {codes, name};
