// Package docs gives programs the documents for users that they show: the OpenAPI document, of which docs/openapi.yaml is the only copy.
package docs

import (
	"embed"

	"github.com/spillwaydb/spillway/protocols/fault"
)

//go:embed openapi.yaml
var files embed.FS

// OpenAPI is docs/openapi.yaml: the HTTP API.
func OpenAPI() []byte {
	text, err := files.ReadFile("openapi.yaml")
	if err != nil {
		fault.Bug("a file of the program: %v", err)
	}
	return text
}
