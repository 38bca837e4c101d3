//! A macro for enums whose values have names in plans and in output.

/// Defines an enum, the list of its values, and a function that returns a value's name. With `by A and B`, there are
/// two functions of these names.
macro_rules! named {
    ($(#[$about:meta])* $vis:vis enum $kind:ident by $name:ident {
        $($(#[$doc:meta])* $value:ident $text:literal,)*
    }) => {
        $(#[$about])*
        $vis enum $kind {
            $($(#[$doc])* $value,)*
        }

        impl $kind {
            /// Every value, in order.
            pub const ALL: [$kind; [$($text),*].len()] = [$($kind::$value,)*];

            /// Returns the value's name.
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
        $crate::formats::named_enum::named! {
            $(#[$about])* $vis enum $kind by $name { $($(#[$doc])* $value $text,)* }
        }

        impl $kind {
            /// Returns the value's name in reports.
            pub const fn $other(self) -> &'static str {
                match self {
                    $($kind::$value => $words,)*
                }
            }
        }
    };
}

pub(crate) use named;
