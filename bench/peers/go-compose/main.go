// go-compose reads a Compose file with Docker Compose's own library, and prints it as JSON with all variables
// replaced.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"

	"github.com/compose-spec/compose-go/v2/cli"
)

func main() {
	profile := flag.String("profile", "", "services of this profile, too")
	flag.Parse()
	if flag.NArg() != 1 {
		log.Fatal("usage: go-compose [-profile NAME] FILE")
	}
	var profiles []string
	if *profile != "" {
		profiles = append(profiles, *profile)
	}
	options, err := cli.NewProjectOptions(flag.Args(), cli.WithOsEnv, cli.WithProfiles(profiles))
	if err != nil {
		log.Fatal(err)
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	text, err := project.MarshalJSON()
	if err != nil {
		log.Fatal(err)
	}
	if _, err := fmt.Println(string(text)); err != nil {
		os.Exit(1)
	}
}
