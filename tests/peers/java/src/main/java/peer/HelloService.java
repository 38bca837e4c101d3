package peer;

public interface HelloService {
    String sayHello(String name);
}
