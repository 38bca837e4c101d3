//go:build go1.26

// A module of an older Go has these switched off.
//go:debug tlssecpmlkem=1

package main

import "crypto/tls"

func init() {
	curves["secp256r1mlkem768"] = tls.SecP256r1MLKEM768
	curves["secp384r1mlkem1024"] = tls.SecP384r1MLKEM1024
}
