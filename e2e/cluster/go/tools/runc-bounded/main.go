// An OCI runtime for machines whose root lacks CAP_SYS_RESOURCE: takes out of a container's
// configuration what such a root cannot give, then becomes runc.
//
//	engine ──▶ runc-bounded create --bundle DIR …   DIR/config.json: "process" is trimmed
//	           runc-bounded exec --process FILE …   FILE is the process, trimmed
//	                └─ exec ─▶ runc, same arguments
//
// Trimmed are that capability, OOM scores below zero, and limits above our own.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

const missing = "CAP_SYS_RESOURCE"

var limits = map[string]int{
	"RLIMIT_CPU": 0, "RLIMIT_FSIZE": 1, "RLIMIT_DATA": 2, "RLIMIT_STACK": 3, "RLIMIT_CORE": 4,
	"RLIMIT_RSS": 5, "RLIMIT_NPROC": 6, "RLIMIT_NOFILE": 7, "RLIMIT_MEMLOCK": 8, "RLIMIT_AS": 9,
	"RLIMIT_LOCKS": 10, "RLIMIT_SIGPENDING": 11, "RLIMIT_MSGQUEUE": 12, "RLIMIT_NICE": 13,
	"RLIMIT_RTPRIO": 14, "RLIMIT_RTTIME": 15,
}

type object = map[string]any

func main() {
	arguments := os.Args[1:]
	for _, argument := range arguments {
		switch argument {
		case "create", "run":
			bundle := option(arguments, "--bundle", "-b")
			rewrite(filepath.Join(bundle, "config.json"), func(config object) {
				if process, ok := config["process"].(object); ok {
					trim(process)
				}
			})
		case "exec":
			if file := option(arguments, "--process", "-p"); file != "" {
				rewrite(file, trim)
			}
		default:
			continue
		}
		break
	}
	runc, err := exec.LookPath("runc")
	if err == nil {
		err = syscall.Exec(runc, append([]string{runc}, arguments...), os.Environ())
	}
	fmt.Fprintln(os.Stderr, "runc-bounded:", err)
	os.Exit(1)
}

func option(arguments []string, names ...string) string {
	for at, argument := range arguments {
		for _, name := range names {
			if argument == name && at+1 < len(arguments) {
				return arguments[at+1]
			}
			if value, found := strings.CutPrefix(argument, name+"="); found {
				return value
			}
		}
	}
	return ""
}

// rewrite changes a JSON file; one that cannot be read is left for runc to complain about.
func rewrite(path string, change func(object)) {
	text, err := os.ReadFile(path)
	if err != nil {
		return
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber() // limits are 64 bits wide, a float is not
	var content object
	if decoder.Decode(&content) != nil {
		return
	}
	change(content)
	if text, err = json.Marshal(content); err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "runc-bounded:", err)
		os.Exit(1)
	}
}

func trim(process object) {
	if sets, ok := process["capabilities"].(object); ok {
		for name, set := range sets {
			kept := []any{}
			listed, _ := set.([]any)
			for _, capability := range listed {
				if capability != missing {
					kept = append(kept, capability)
				}
			}
			sets[name] = kept
		}
	}
	if score, ok := process["oomScoreAdj"].(json.Number); ok && strings.HasPrefix(string(score), "-") {
		process["oomScoreAdj"] = 0
	}
	asked, _ := process["rlimits"].([]any)
	for _, each := range asked {
		if limit, ok := each.(object); ok {
			lower(limit)
		}
	}
}

// lower brings a limit down to what this process may give.
func lower(limit object) {
	name, _ := limit["type"].(string)
	number, known := limits[name]
	var own syscall.Rlimit
	if !known || syscall.Getrlimit(number, &own) != nil {
		return
	}
	for _, bound := range []string{"hard", "soft"} {
		value, ok := limit[bound].(json.Number)
		if !ok {
			continue
		}
		var asked uint64
		if _, err := fmt.Sscan(string(value), &asked); err == nil && asked > own.Max {
			limit[bound] = own.Max
		}
	}
}
