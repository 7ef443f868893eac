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

// validate compares rules with the tools of a server. See [Protect].
func validate(ctx context.Context, server *mcp.Server, rules Rules, tools Tools) error {
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
		check(name, rules[name])
	}
	for _, name := range slices.Sorted(maps.Keys(tools)) {
		check(name, tools[name].Guard())
	}
	return errors.Join(errs...)
}

// noneNil returns an error for each tool that has a nil rule or engine.
func noneNil[T any](named map[string]*T) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(named)) {
		if named[name] == nil {
			errs = append(errs, fmt.Errorf("%w: tool %q has a nil %T", core.ErrConfig, name, named[name]))
		}
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
	session, err := mcp.NewClient(&mcp.Implementation{Name: "mcplock.Protect"}, nil).Connect(ctx, here, nil)
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

// missing describes the mistake in an argument of a tool. It is empty if there is none, or if
// the schema does not tell.
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
