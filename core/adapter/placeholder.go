package adapter

// Placeholder is one value that a template takes from a request. An adapter that
// knows its routes at start-up checks them then; see Guard.Placeholders of
// package core.
type Placeholder struct {
	// Source says where the value comes from.
	Source Source
	// Name is the name within the source, without the prefix of the source. The
	// name of a header is in canonical form.
	Name string
	// Form is the name of the form (core.Form) that says which texts are one value,
	// {id:int}. Empty means that each text is a different value.
	Form string
}

// Source says where the value of a placeholder comes from.
type Source string

// The sources of a template.
const (
	// SourceParam is a route parameter, in gRPC a message field: {id}. If its name
	// begins like another source, write {msg.header.id}.
	SourceParam Source = "msg"
	// SourceHeader is a header, in gRPC metadata: {header.X-Tenant}.
	SourceHeader Source = "header"
	// SourceQuery is a query parameter: {query.q}.
	SourceQuery Source = "query"
	// SourceContext is a function registered with core.ContextFunc: {ctx.tenant}.
	SourceContext Source = "ctx"
)
