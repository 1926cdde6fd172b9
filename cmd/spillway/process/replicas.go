package process

import (
	"net/http"

	"github.com/spillwaydb/spillway/gateway/ui"
)

// replicasPath shows the HA pairs with the elected replica of each.
const replicasPath = "/api/v1/status/ha"

func (d *door) replicasPage(w http.ResponseWriter, r *http.Request) {
	ui.Answer(w, r, d.replicas.Status())
}
