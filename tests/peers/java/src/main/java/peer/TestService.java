package peer;

public interface TestService {
    String echoStr(String text);
}
