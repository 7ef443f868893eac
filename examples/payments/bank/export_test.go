package bank

// AccountKey is where an account is kept.
var AccountKey = accountKey
