module plimsoll.invalid/bench/peers

go 1.24

require (
	github.com/johannesboyne/gofakes3 v1.2.0
	golang.org/x/net v0.41.0
	google.golang.org/grpc v1.75.1
	google.golang.org/protobuf v1.36.6
)

require (
	connectrpc.com/connect v1.18.1 // indirect
	github.com/ryszard/goskiplist v0.0.0-20150312221310-2dfbae5fcf46 // indirect
	go.shabbyrobe.org/gocovmerge v0.0.0-20230507111327-fa4f82cfbf4d // indirect
	golang.org/x/sys v0.33.0 // indirect
	golang.org/x/text v0.26.0 // indirect
	golang.org/x/tools v0.33.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20250707201910-8d1bb00bc6a7 // indirect
)
