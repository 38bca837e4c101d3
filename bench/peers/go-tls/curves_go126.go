//go:build go1.26

// They are disabled for modules that declare an older version of Go.
//go:debug tlssecpmlkem=1

package main

import "crypto/tls"

func init() {
	curves["secp256r1mlkem768"] = tls.SecP256r1MLKEM768
	curves["secp384r1mlkem1024"] = tls.SecP384r1MLKEM1024
}
