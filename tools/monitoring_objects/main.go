// Reads objects of the Prometheus operator from standard input, a JSON document per line, into the
// types that their CRDs are generated from: unknown fields and wrong types are errors.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"

	v1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
)

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var of struct{ Kind string }
		if err := json.Unmarshal(lines.Bytes(), &of); err != nil {
			fail(of.Kind, err)
		}
		into, known := map[string]any{
			"PrometheusRule": &v1.PrometheusRule{},
			"PodMonitor":     &v1.PodMonitor{},
			"ServiceMonitor": &v1.ServiceMonitor{},
		}[of.Kind]
		if !known {
			fail(of.Kind, fmt.Errorf("no such kind"))
		}
		decoder := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(into); err != nil {
			fail(of.Kind, err)
		}
	}
}

func fail(kind string, err error) {
	fmt.Fprintf(os.Stderr, "%s: %v\n", kind, err)
	os.Exit(1)
}
