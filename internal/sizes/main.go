// Command sizes counts how large the parts of this module are, and how the files of package
// core/internal/lock depend on each other. It is for `make sizes`; in the long lane a test holds the
// counts against bounds.
package main

import (
	"fmt"
	"log"
)

func main() {
	c, err := count()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(c)
}
