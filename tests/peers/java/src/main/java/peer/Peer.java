package peer;

import com.alipay.remoting.BizContext;
import com.alipay.remoting.AsyncContext;
import com.alipay.remoting.Connection;
import com.alipay.remoting.rpc.RpcClient;
import com.alipay.remoting.rpc.RpcServer;
import com.alipay.remoting.rpc.protocol.SyncUserProcessor;
import com.alipay.sofa.rpc.config.ConsumerConfig;
import com.alipay.sofa.rpc.config.ProviderConfig;
import com.alipay.sofa.rpc.config.ServerConfig;
import com.alipay.sofa.rpc.core.exception.SofaRpcException;

/**
 * One program for every part a Java peer plays in the tests.
 *
 *   Peer bolt-server PORT            echoes strings over SOFABolt; "throw" throws
 *   Peer sofa-server PORT            HelloService and TestService over SOFARPC
 *   Peer bolt-client HOST PORT QUERY N [IDLE_MS]
 *                                    N echoes; QUERY: _PROTOCOL=2&_VERSION=2 and the like, or -
 *   Peer sofa-client HOST PORT N     N calls of each service
 *
 * A server prints READY once it listens. A client prints OK and ends with 0, or tells
 * what went wrong and ends with 1.
 */
public final class Peer {
    private Peer() {}

    public static void main(String[] arguments) throws Exception {
        try {
            switch (arguments[0]) {
                case "bolt-server":
                    boltServer(Integer.parseInt(arguments[1]));
                    break;
                case "sofa-server":
                    sofaServer(Integer.parseInt(arguments[1]));
                    break;
                case "bolt-client":
                    boltClient(arguments[1] + ":" + arguments[2], arguments[3], Integer.parseInt(arguments[4]),
                        arguments.length > 5 ? Long.parseLong(arguments[5]) : 0);
                    System.exit(0);
                    break;
                case "sofa-client":
                    sofaClient(arguments[1] + ":" + arguments[2], Integer.parseInt(arguments[3]));
                    System.exit(0);
                    break;
                default:
                    throw new IllegalArgumentException("unknown part: " + arguments[0]);
            }
        } catch (Throwable problem) {
            problem.printStackTrace();
            System.exit(1);
        }
    }

    private static void boltServer(int port) throws Exception {
        RpcServer server = new RpcServer("127.0.0.1", port);
        server.registerUserProcessor(new SyncUserProcessor<String>() {
            @Override
            public Object handleRequest(BizContext context, String request) {
                if (request.equals("throw")) {
                    throw new IllegalStateException("thrown on request");
                }
                return request;
            }

            @Override
            public String interest() {
                return String.class.getName();
            }
        });
        server.startup();
        ready();
    }

    private static void sofaServer(int port) throws Exception {
        ServerConfig server = new ServerConfig().setProtocol("bolt").setHost("127.0.0.1").setPort(port).setDaemon(false);
        ProviderConfig<HelloService> hello = new ProviderConfig<HelloService>()
            .setInterfaceId(HelloService.class.getName())
            .setRef(name -> {
                if (name.equals("throw")) {
                    throw new IllegalStateException("thrown on request");
                }
                return "Hello, " + name;
            })
            .setServer(server).setRegister(false);
        ProviderConfig<TestService> test = new ProviderConfig<TestService>()
            .setInterfaceId(TestService.class.getName())
            .setRef(text -> text)
            .setServer(server).setRegister(false);
        hello.export();
        test.export();
        ready();
    }

    private static void ready() throws InterruptedException {
        System.out.println("READY");
        System.out.flush();
        Thread.currentThread().join();
    }

    private static void boltClient(String address, String query, int count, long idle) throws Exception {
        String url = query.equals("-") ? address : address + "?" + query;
        RpcClient client = new RpcClient();
        client.startup();
        Connection connection = client.createStandaloneConnection(url, 3000);
        for (int i = 0; i < count; i++) {
            echo(client, connection, "text " + i + " é\uD83D\uDE00");
        }
        StringBuilder large = new StringBuilder();
        for (int i = 0; i < 70000; i++) {
            large.append((char) ('a' + i % 26));
        }
        echo(client, connection, large.toString());
        if (idle > 0) {
            // Heartbeats keep the connection alive meanwhile; unanswered ones would close it.
            Thread.sleep(idle);
            if (!connection.isFine()) {
                throw new IllegalStateException("the connection did not outlive its idle time");
            }
            echo(client, connection, "still here");
        }
        client.oneway(connection, "to nobody");
        echo(client, connection, "last");
        connection.close();
        client.shutdown();
        System.out.println("OK");
    }

    private static void echo(RpcClient client, Connection connection, String text) throws Exception {
        Object answer = client.invokeSync(connection, text, 5000);
        if (!text.equals(answer)) {
            throw new IllegalStateException("sent " + text + ", received " + answer);
        }
    }

    private static <T> T service(Class<T> type, String address) {
        return new ConsumerConfig<T>()
            .setInterfaceId(type.getName())
            .setProtocol("bolt")
            .setDirectUrl("bolt://" + address)
            .setTimeout(5000)
            .setRegister(false)
            .refer();
    }

    private static void sofaClient(String address, int count) {
        HelloService hello = service(HelloService.class, address);
        TestService test = service(TestService.class, address);
        for (int i = 0; i < count; i++) {
            same("Hello, user " + i, hello.sayHello("user " + i));
            String text = "é\uD83D\uDE00 " + i;
            same(text, test.echoStr(text));
        }
        System.out.println("OK");
    }

    private static void same(String expected, String answer) {
        if (!expected.equals(answer)) {
            throw new IllegalStateException("expected " + expected + ", received " + answer);
        }
    }
}
