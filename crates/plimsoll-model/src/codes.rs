//! Closed lists of stable codes: what run directories, reports and exports show, so a code is never changed.
//!
//! A value is the place of its code in the list. Those that several parts of the program know have a name in the list;
//! one that is a single protocol's has a name in that protocol's folder, and `_` here.

/// The place of `wanted` among `codes`, for constants: one that does not exist stops the compiler.
pub(crate) const fn place(codes: &[&str], wanted: &str) -> usize {
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

/// The list of a type, with the names of its functions: from a code in a constant, to the code, and from a code.
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

            /// How many there are.
            pub const COUNT: usize = $kind::CODES.len();

            $($crate::codes::name!($kind $coded $name $code $explanation);)*

            /// Every one of them, in order.
            pub fn all() -> impl Iterator<Item = $kind> {
                (0..$kind::COUNT as u8).map($kind)
            }

            /// The one of this code, for constants.
            ///
            /// # Panics
            /// Where there is none: the compiler stops.
            pub const fn $coded(code: &str) -> $kind {
                $kind($crate::codes::place($kind::CODES, code) as u8)
            }

            /// The one of this code, if there is one.
            pub fn $from(code: &str) -> Option<$kind> {
                $kind::all().find(|one| one.$code_of() == code)
            }

            /// The stable code.
            pub fn $code_of(self) -> &'static str {
                $kind::CODES[self.index()]
            }

            /// What it is, for a person.
            pub fn explanation(self) -> &'static str {
                $kind::EXPLANATIONS[self.index()]
            }

            /// Its place among all.
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
