package peer;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.RedissonMultiLock;
import org.redisson.RedissonRedLock;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/**
 * A Java service that does what it is told: a command a line on standard input, an answer a line on
 * standard output, both JSON. Every thread number is a thread of its own, as Redisson's owners are.
 *
 * Arguments: watchdog timeout in ms, fair wait timeout in ms, "single" or "cluster", addresses. With
 * "single", every address is a server of its own; locks are of the first one where a command names no other.
 */
public final class Peer {
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);

    private final List<RedissonClient> clients = new ArrayList<>();
    private final Map<Long, ExecutorService> threads = new ConcurrentHashMap<>();

    public static void main(String[] args) throws Exception {
        Peer peer = new Peer(args);
        answer(newAnswer(0));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            JsonObject command = JsonParser.parseString(line).getAsJsonObject();
            peer.threads.computeIfAbsent(number(command, "thread", 0), n -> Executors.newSingleThreadExecutor(r -> {
                Thread t = new Thread(r, "worker-" + n);
                t.setDaemon(true);
                return t;
            })).execute(() -> peer.run(command));
        }
        System.exit(0); // whatever is held lapses
    }

    private Peer(String[] args) throws ReflectiveOperationException {
        List<String> addresses = List.of(args).subList(3, args.length);
        if (args[2].equals("cluster")) {
            Config config = config(args);
            config.useClusterServers().addNodeAddress(addresses.toArray(new String[0])).setScanInterval(1000);
            clients.add(Redisson.create(config));
            return;
        }
        for (String address : addresses) {
            Config config = config(args);
            var server = config.useSingleServer().setAddress(address).setConnectionMinimumIdleSize(2).setConnectionPoolSize(24);
            mapNames(server);
            mapNames(config);
            clients.add(Redisson.create(config));
        }
    }

    /**
     * Has a configuration put the system property "prefix" before every name. The interface of a NameMapper is in another
     * package in every second version, and so is the method that sets it.
     */
    private static void mapNames(Object config) throws ReflectiveOperationException {
        String prefix = System.getProperty("prefix", "");
        if (prefix.isEmpty()) {
            return;
        }
        for (Method set : config.getClass().getMethods()) {
            if (!set.getName().equals("setNameMapper")) {
                continue;
            }
            Class<?> type = set.getParameterTypes()[0];
            set.invoke(config, Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type}, (self, method, of) -> switch (method.getName()) {
                case "map" -> prefix + of[0];
                case "unmap" -> ((String) of[0]).substring(prefix.length());
                case "equals" -> self == of[0];
                case "hashCode" -> 1;
                default -> "a mapper to " + prefix;
            }));
        }
    }

    private static Config config(String[] args) {
        Config config = new Config();
        config.setLockWatchdogTimeout(Long.parseLong(args[0]));
        try { // not in every version; without it, it is five minutes
            Config.class.getMethod("setFairLockWaitTimeout", long.class).invoke(config, Long.parseLong(args[1]));
        } catch (ReflectiveOperationException e) {
            return config;
        }
        return config;
    }

    private void run(JsonObject command) {
        JsonObject answer = newAnswer(number(command, "id", 0));
        try {
            execute(command, answer);
        } catch (Throwable e) {
            answer.addProperty("ok", false);
            answer.addProperty("error", e.getClass().getSimpleName() + ": " + e.getMessage());
        }
        answer(answer);
    }

    private static JsonObject newAnswer(long id) {
        JsonObject answer = new JsonObject();
        answer.addProperty("id", id);
        answer.addProperty("ok", true);
        return answer;
    }

    private static long number(JsonObject c, String name, long otherwise) {
        return c.has(name) ? c.get(name).getAsLong() : otherwise;
    }

    private static String text(JsonObject c, String name) {
        return c.has(name) ? c.get(name).getAsString() : "";
    }

    private static synchronized void answer(JsonObject answer) {
        OUT.println(answer);
        OUT.flush();
    }

    private void execute(JsonObject c, JsonObject answer) throws Exception {
        if (text(c, "kind").equals("semaphore")) {
            semaphore(c, answer);
            return;
        }
        RLock lock = lock(c);
        long wait = number(c, "wait", 0), lease = number(c, "lease", -1);
        switch (text(c, "op")) {
            case "lock" -> {
                if (lease > 0) {
                    lock.lock(lease, TimeUnit.MILLISECONDS);
                } else {
                    lock.lock();
                }
            }
            case "trylock" -> answer.addProperty("value", lock.tryLock(wait, lease > 0 ? lease : -1, TimeUnit.MILLISECONDS));
            case "unlock" -> lock.unlock();
            case "force" -> answer.addProperty("value", lock.forceUnlock());
            case "locked" -> answer.addProperty("value", lock.isLocked());
            case "held" -> answer.addProperty("value", lock.isHeldByCurrentThread());
            case "count" -> answer.addProperty("number", lock.getHoldCount());
            case "ttl" -> answer.addProperty("number", lock.remainTimeToLive());
            case "token" -> answer.addProperty("number", (Long) lock.getClass().getMethod("getToken").invoke(lock));
            case "storm" -> answer.addProperty("number", storm(c, lock));
            default -> throw new IllegalArgumentException("op " + c);
        }
    }

    /** The permit that a thread holds, by the name of the semaphore and the thread. */
    private final Map<String, String> permits = new ConcurrentHashMap<>();

    /** The same for several permits. Old versions of Redisson have no such methods, so they are called by reflection. */
    private final Map<String, List<?>> several = new ConcurrentHashMap<>();

    private void semaphore(JsonObject c, JsonObject answer) throws Exception {
        RPermitExpirableSemaphore s = clients.get(0).getPermitExpirableSemaphore(text(c, "name"));
        String holder = text(c, "name") + " " + number(c, "thread", 0);
        long wait = number(c, "wait", 0), lease = number(c, "lease", -1);
        switch (text(c, "op")) {
            case "lock" -> permits.put(holder, lease > 0 ? s.acquire(lease, TimeUnit.MILLISECONDS) : s.acquire());
            case "trylock" -> {
                String id = s.tryAcquire(wait, lease, TimeUnit.MILLISECONDS);
                answer.addProperty("value", id != null);
                if (id != null) {
                    permits.put(holder, id);
                }
            }
            case "unlock" -> s.release(permits.remove(holder));
            case "lock several" -> several.put(holder, (List<?>) RPermitExpirableSemaphore.class
                .getMethod("acquire", int.class, long.class, TimeUnit.class)
                .invoke(s, (int) number(c, "permits", 0), lease, TimeUnit.MILLISECONDS));
            case "trylock several" -> {
                List<?> ids = (List<?>) RPermitExpirableSemaphore.class
                    .getMethod("tryAcquire", int.class, long.class, long.class, TimeUnit.class)
                    .invoke(s, (int) number(c, "permits", 0), wait, lease, TimeUnit.MILLISECONDS);
                answer.addProperty("value", !ids.isEmpty());
                if (!ids.isEmpty()) {
                    several.put(holder, ids);
                }
            }
            case "unlock several" -> RPermitExpirableSemaphore.class.getMethod("release", List.class)
                .invoke(s, several.remove(holder));
            case "permit" -> answer.addProperty("text", permits.get(holder));
            case "release" -> answer.addProperty("value", s.tryRelease(text(c, "counter")));
            case "set" -> answer.addProperty("value", s.trySetPermits((int) number(c, "ms", 0)));
            case "count" -> answer.addProperty("number", s.availablePermits());
            case "storm" -> answer.addProperty("number", storm(c, s));
            default -> throw new IllegalArgumentException("op " + c);
        }
    }

    /** Counts the holders while it is one of them, fails if there are more than permits, and returns how often it was one. */
    private long storm(JsonObject c, RPermitExpirableSemaphore s) throws Exception {
        var holders = clients.get(0).getAtomicLong(text(c, "counter"));
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(number(c, "ms", 0));
        long n = 0;
        for (; System.nanoTime() < end; n++) {
            String id = s.acquire(30, TimeUnit.SECONDS);
            try {
                long now = holders.incrementAndGet();
                holders.decrementAndGet();
                if (now > number(c, "lease", 0)) {
                    throw new IllegalStateException(now + " holders");
                }
            } finally {
                s.release(id);
            }
        }
        return n;
    }

    /**
     * Counts under the lock until its time is over, and returns how often. Of kind "rw" it also reads
     * under the read lock, and fails if somebody counts meanwhile.
     */
    private long storm(JsonObject c, RLock lock) throws Exception {
        RLock read = text(c, "kind").equals("rw") ? clients.get(0).getReadWriteLock(text(c, "name")).readLock() : null;
        var counter = clients.get(0).<String>getBucket(text(c, "counter"), StringCodec.INSTANCE);
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(number(c, "ms", 0));
        long n = 0;
        while (System.nanoTime() < end) {
            if (read != null) {
                read.lock();
                try {
                    String before = counter.get(), after = counter.get();
                    if (!java.util.Objects.equals(before, after)) {
                        throw new IllegalStateException("somebody wrote " + after + " over " + before + " while it was read");
                    }
                } finally {
                    read.unlock();
                }
            }
            lock.lock();
            try {
                String value = counter.get();
                counter.set(String.valueOf(value == null ? 1 : Long.parseLong(value) + 1));
                n++;
            } finally {
                lock.unlock();
            }
        }
        return n;
    }

    private RLock lock(JsonObject c) throws Exception {
        List<RLock> locks = new ArrayList<>();
        int i = 0;
        switch (text(c, "kind")) {
            case "multi" -> {
                for (JsonElement name : c.getAsJsonArray("names")) {
                    locks.add(clients.get(0).getLock(name.getAsString()));
                }
                return new RedissonMultiLock(locks.toArray(new RLock[0]));
            }
            case "red" -> {
                for (RedissonClient client : clients) {
                    locks.add(client.getLock(text(c, "name")));
                }
                return new RedissonRedLock(locks.toArray(new RLock[0]));
            }
            default -> {
                RedissonClient client = clients.get(0);
                String name = text(c, "name");
                return switch (text(c, "kind")) {
                    case "lock" -> client.getLock(name);
                    case "fair" -> client.getFairLock(name);
                    case "read" -> client.getReadWriteLock(name).readLock();
                    case "write", "rw" -> client.getReadWriteLock(name).writeLock();
                    // Not in every version.
                    case "fenced" -> (RLock) RedissonClient.class.getMethod("getFencedLock", String.class).invoke(client, name);
                    default -> throw new IllegalArgumentException("kind " + c);
                };
            }
        }
    }
}
