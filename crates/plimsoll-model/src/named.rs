//! Enums whose values have names, as plans and what is written have them.

/// An enum, the list of its values, and a function that names them; `by A and B`: two functions.
macro_rules! named {
    ($(#[$about:meta])* $vis:vis enum $kind:ident by $name:ident {
        $($(#[$doc:meta])* $value:ident $text:literal,)*
    }) => {
        $(#[$about])*
        $vis enum $kind {
            $($(#[$doc])* $value,)*
        }

        impl $kind {
            /// Every one, in order.
            pub const ALL: [$kind; [$($text),*].len()] = [$($kind::$value,)*];

            /// What it is called.
            pub const fn $name(self) -> &'static str {
                match self {
                    $($kind::$value => $text,)*
                }
            }
        }
    };
    ($(#[$about:meta])* $vis:vis enum $kind:ident by $name:ident and $other:ident {
        $($(#[$doc:meta])* $value:ident $text:literal $words:literal,)*
    }) => {
        $crate::named::named! {
            $(#[$about])* $vis enum $kind by $name { $($(#[$doc])* $value $text,)* }
        }

        impl $kind {
            /// What it is called, for a person.
            pub const fn $other(self) -> &'static str {
                match self {
                    $($kind::$value => $words,)*
                }
            }
        }
    };
}

pub(crate) use named;
