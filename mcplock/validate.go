package mcplock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
)

// Validate compares the rules of [Serialize] and the tools of [Idempotent] with the tools of a
// server. Add all tools first, and call Validate before the server serves. Pass nil for a
// middleware that the server does not have.
//
// Validate returns [core.ErrConfig] for a name that no tool of the server has, and for a
// placeholder {arg.name} that the input schema of its tool does not have, or has as an object
// or a list. Of a schema that says more than properties (a reference, allOf), it checks nothing.
//
// The SDK lists tools to a client only. Validate is such a client, over memory: middleware of
// the server sees its requests initialize and tools/list, without a user. Add middleware that
// refuses these after Validate, or Validate returns its error.
func Validate(ctx context.Context, server *mcp.Server, rules Rules, tools Tools) error {
	schemas, err := schemasOf(ctx, server)
	if err != nil {
		return fmt.Errorf("mcplock: listing the tools of the server: %w", err)
	}
	var errs []error
	check := func(name string, rule *core.Guard) {
		schema, ok := schemas[name]
		if !ok {
			errs = append(errs, fmt.Errorf("%w: tool %q: the server has no such tool, only %q",
				core.ErrConfig, name, slices.Sorted(maps.Keys(schemas))))
			return
		}
		if rule == nil {
			return
		}
		for _, p := range rule.Placeholders() {
			if p.Source != adapter.SourceParam {
				continue
			}
			if wrong := missing(schema, strings.TrimPrefix(p.Name, argumentPrefix)); wrong != "" {
				errs = append(errs, fmt.Errorf("%w: tool %q, rule %s: {%s}: %s", core.ErrConfig, name, rule.Name(), p.Name, wrong))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(rules)) {
		if rules[name] == nil {
			errs = append(errs, fmt.Errorf("%w: tool %q has a nil rule", core.ErrConfig, name))
			continue
		}
		check(name, rules[name])
	}
	for _, name := range slices.Sorted(maps.Keys(tools)) {
		if tools[name] == nil {
			errs = append(errs, fmt.Errorf("%w: tool %q has a nil engine", core.ErrConfig, name))
			continue
		}
		check(name, tools[name].Guard())
	}
	return errors.Join(errs...)
}

// schemasOf returns the input schemas of the tools of a server, by the name of the tool.
func schemasOf(ctx context.Context, server *mcp.Server) (schemas map[string]any, err error) {
	here, there := mcp.NewInMemoryTransports()
	serving, err := server.Connect(ctx, there, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, serving.Wait()) }()
	session, err := mcp.NewClient(&mcp.Implementation{Name: "mcplock.Validate"}, nil).Connect(ctx, here, nil)
	if err != nil {
		return nil, errors.Join(err, serving.Close())
	}
	defer func() { err = errors.Join(err, session.Close()) }()
	schemas = map[string]any{}
	for tool, err := range session.Tools(ctx, nil) {
		if err != nil {
			return nil, err
		}
		schemas[tool.Name] = tool.InputSchema
	}
	return schemas, nil
}

// missing says what is wrong with an argument of a tool, or nothing if nothing is, or if the
// schema does not tell.
func missing(schema any, path string) (wrong string) {
	for name := range strings.SplitSeq(path, ".") {
		object, _ := schema.(map[string]any)
		properties, _ := object["properties"].(map[string]any)
		for _, more := range []string{"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "patternProperties"} {
			if object[more] != nil {
				return ""
			}
		}
		if more := object["additionalProperties"]; properties == nil || more != nil && more != false {
			return "" // any argument at all
		}
		if schema = properties[name]; schema == nil {
			return fmt.Sprintf("the tool has no argument %s, only %q", path, slices.Sorted(maps.Keys(properties)))
		}
	}
	if object, _ := schema.(map[string]any); object["type"] == "object" || object["type"] == "array" {
		return fmt.Sprintf("the argument is of type %v, which makes no key", object["type"])
	}
	return ""
}
