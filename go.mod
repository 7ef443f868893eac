module github.com/interlock-go/interlock

go 1.26.0

require (
	github.com/alicebob/miniredis/v2 v2.40.0 // examples and the demonstration: ClockTTL
	github.com/gin-gonic/gin v1.9.1 // a file name in Content-Disposition is quoted (CVE-2023-29401)
	github.com/go-chi/chi/v5 v5.0.12 // tests only
	github.com/grpc-ecosystem/go-grpc-middleware/v2 v2.0.1 // tests only: the selector
	github.com/jackc/pgx/v5 v5.5.5 // the demonstration; SQL injection by a message of 4 GB (CVE-2024-27304)
	github.com/labstack/echo/v4 v4.11.1 // Response.Unwrap for http.ResponseController; 4.10 also matches a 404 as a route
	github.com/labstack/echo/v5 v5.4.3 // ProblemError
	github.com/redis/go-redis/v9 v9.23.0 // a connection with a failed set-up is closed (9.22 leaks it); before 9.22 a reply that panicked left its connection in use
	go.opentelemetry.io/otel v1.31.0 // semantic conventions 1.26 (in 1.28); exemplars without a setting in tests
	go.opentelemetry.io/otel/exporters/stdout/stdouttrace v1.31.0 // the demonstration
	go.opentelemetry.io/otel/metric v1.31.0 // as otel
	go.opentelemetry.io/otel/sdk v1.31.0 // tests and the demonstration
	go.opentelemetry.io/otel/sdk/metric v1.31.0 // tests
	go.opentelemetry.io/otel/trace v1.31.0 // as otel
	go.uber.org/goleak v1.3.0 // tests only
	golang.org/x/net v0.57.0 // echo v5
	google.golang.org/genproto/googleapis/rpc v0.0.0-20240318140521-94a12d6c2237 // grpc
	google.golang.org/grpc v1.64.1 // SupportPackageIsVersion9 of generated code; a context in a log shows no metadata (GO-2024-2978)
	google.golang.org/protobuf v1.33.0 // an endless loop in protojson (CVE-2024-24786)
)

require (
	github.com/bytedance/sonic v1.9.1 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/chenzhuoyu/base64x v0.0.0-20221115062448-fe3a3abad311 // indirect
	github.com/gabriel-vasile/mimetype v1.4.2 // indirect
	github.com/gin-contrib/sse v0.1.0 // indirect
	github.com/go-logr/logr v1.4.2 // indirect
	github.com/go-logr/stdr v1.2.2 // indirect
	github.com/go-playground/locales v0.14.1 // indirect
	github.com/go-playground/universal-translator v0.18.1 // indirect
	github.com/go-playground/validator/v10 v10.14.0 // indirect
	github.com/goccy/go-json v0.10.2 // indirect
	github.com/golang-jwt/jwt v3.2.2+incompatible // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20221227161230-091c0ba34f0a // indirect
	github.com/jackc/puddle/v2 v2.2.1 // indirect
	github.com/json-iterator/go v1.1.12 // indirect
	github.com/klauspost/cpuid/v2 v2.4.0 // indirect
	github.com/kr/text v0.2.0 // indirect
	github.com/labstack/gommon v0.4.0 // indirect
	github.com/leodido/go-urn v1.2.4 // indirect
	github.com/mattn/go-colorable v0.1.13 // indirect
	github.com/mattn/go-isatty v0.0.19 // indirect
	github.com/modern-go/concurrent v0.0.0-20180306012644-bacd9c7ef1dd // indirect
	github.com/modern-go/reflect2 v1.0.2 // indirect
	github.com/pelletier/go-toml/v2 v2.0.8 // indirect
	github.com/rogpeppe/go-internal v1.9.0 // indirect
	github.com/twitchyliquid64/golang-asm v0.15.1 // indirect
	github.com/ugorji/go/codec v1.2.11 // indirect
	github.com/valyala/bytebufferpool v1.0.0 // indirect
	github.com/valyala/fasttemplate v1.2.2 // indirect
	github.com/yuin/gopher-lua v1.1.1 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	golang.org/x/arch v0.3.0 // indirect
	golang.org/x/crypto v0.54.0 // indirect
	golang.org/x/sync v0.22.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	golang.org/x/text v0.40.0 // indirect
	golang.org/x/time v0.15.0 // indirect
	gopkg.in/yaml.v3 v3.0.1 // indirect
)
