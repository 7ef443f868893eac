package driver

// NotKnown begins a sentence of a store's Check, after the address of a server, about a fact that the
// user of the store may not ask for, such as a setting. Nothing is known to be unsafe.
const NotKnown = "not known: "
