// gitops prints the state of objects as Flux and Argo CD evaluate it: one JSON object a line in, one a line out.
//
// Usage: gitops HEALTH.lua < objects. Flux uses kstatus, Argo CD runs its health scripts with gopher-lua.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

func toLua(state *lua.LState, value any) lua.LValue {
	switch found := value.(type) {
	case bool:
		return lua.LBool(found)
	case float64:
		return lua.LNumber(found)
	case int64:
		return lua.LNumber(found)
	case string:
		return lua.LString(found)
	case []any:
		table := state.NewTable()
		for _, entry := range found {
			table.Append(toLua(state, entry))
		}
		return table
	case map[string]any:
		table := state.NewTable()
		for key, entry := range found {
			table.RawSetString(key, toLua(state, entry))
		}
		return table
	}
	return lua.LNil
}

func health(script string, object map[string]any) (string, string, error) {
	state := lua.NewState()
	defer state.Close()
	state.SetGlobal("obj", toLua(state, object))
	if err := state.DoString(script); err != nil {
		return "", "", err
	}
	table, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		return "", "", fmt.Errorf("the script returns no table")
	}
	return table.RawGetString("status").String(), table.RawGetString("message").String(), nil
}

func run() error {
	script, err := os.ReadFile(os.Args[1])
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 8<<20)
	for lines.Scan() {
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(lines.Bytes()); err != nil {
			return err
		}
		found, err := status.Compute(object)
		if err != nil {
			return err
		}
		state, message, err := health(string(script), object.Object)
		if err != nil {
			return err
		}
		answer := map[string]string{"flux": found.Status.String(), "argo": state, "message": message}
		if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
			return err
		}
	}
	return lines.Err()
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
